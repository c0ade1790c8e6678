"""A workflow script as it lies in files: its text, what it says of itself beside it, and the arguments for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fanfold.cli.forms import Content, Wrong, read_json
from fanfold.cli.sources import STANDARD_INPUT, name_of, read_text
from fanfold.cli.yaml_form import read_yaml
from fanfold.errors import FieldViolation, InvalidArgument

MAX_BYTES = 4 * 2**20
"""Most bytes of a file that are read; coordinators take less."""

_BESIDE: Mapping[str, Callable[[str], Content]] = {
    ".meta.json": read_json,
    ".meta.yaml": read_yaml,
    ".meta.yml": read_yaml,
}


@dataclass(frozen=True, slots=True)
class ScriptFile:
    """A script that was read. `meta` and `args` are as they were written, to be checked where they are used."""

    name: str
    source: str
    meta: Any
    args: Any

    def located(self, error: InvalidArgument) -> InvalidArgument:
        """The error with the script's file where it names the script."""
        renamed = [
            FieldViolation(self.name if each.field == "script" else each.field, each.description)
            for each in error.violations
        ]
        return InvalidArgument(None if renamed else error.message, violations=renamed, reason=error.reason)


def read_script(source: str, meta: str, args: str) -> ScriptFile:
    """The script in a file, or in standard input if `source` is "-".

    `meta` and `args` are JSON, or name a file of JSON or YAML if they begin with "@". Without `meta` it is read from a
    file that lies beside the script: FILE.meta.json, or .yaml.

    Raises:
        InvalidArgument: names everything that cannot be read.
    """
    wrong: list[FieldViolation] = []

    def tried(name: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except Wrong as error:
            wrong.append(FieldViolation(name, f"{error.what}{error.place}"))
            return None

    text = tried(name_of(source), lambda: read_text(source, MAX_BYTES))
    given_meta = tried("meta", lambda: _given(meta) if meta else _beside(source))
    given_args = tried("args", lambda: _given(args) if args else None)
    if wrong:
        raise InvalidArgument(violations=wrong)
    return ScriptFile(name_of(source), text, given_meta, given_args)


def _given(option: str) -> Any:
    if not option.startswith("@"):
        return read_json(option).value
    path = option[1:]
    reader = read_yaml if Path(path).suffix.lower() in {".yaml", ".yml"} else read_json
    return reader(read_text(path, MAX_BYTES)).value


def _beside(source: str) -> Any:
    """What the file beside a script says of it. Raises Wrong, naming what is looked for."""
    if source != STANDARD_INPUT:
        path = Path(source)
        for suffix, reader in _BESIDE.items():
            beside = path.with_name(path.stem + suffix)
            if beside.exists():
                return reader(read_text(str(beside), MAX_BYTES)).value
    example = json.dumps({"name": "release-audit", "description": "..."})
    place = "" if source == STANDARD_INPUT else f", or {Path(source).stem}.meta.json beside the script"
    raise Wrong(f"is required: --meta '{example}'{place}")
