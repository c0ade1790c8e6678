"""Reading the steps of a fan-out from a file or from standard input: JSON, JSON lines or YAML.

Everything that is wrong is told with the place where it is wrong: the file, the line where there is one, the field and
the limit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fanfold.cli.forms import Content, Lines, Wrong, read_json, read_json_lines
from fanfold.cli.sources import name_of, read_text
from fanfold.cli.yaml_form import read_yaml
from fanfold.errors import FieldViolation, InvalidArgument
from fanfold.model.step import AgentStepSpec
from fanfold.model.validation import parse_specs

MAX_BYTES = 256 * 2**20
"""Most bytes that are read."""

_SUFFIXES = {".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".yaml": "yaml", ".yml": "yaml"}
_READERS: Mapping[str, Callable[[str], Content]] = {"json": read_json, "jsonl": read_json_lines, "yaml": read_yaml}


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps that were read, and where each field of them stands."""

    source: str
    specs: list[AgentStepSpec]
    lines: Lines

    def located(self, error: InvalidArgument) -> InvalidArgument:
        """`error` with file and line for each wrong field; as it was if it names none."""
        return _located(error, self.source, self.lines)


def read_steps(source: str) -> Steps:
    """The steps in a file, or in standard input if `source` is "-".

    The form is told by the file's suffix; of standard input, and of a file that has none, by what is in it.

    Raises:
        InvalidArgument: it cannot be read, or something in it is wrong; names every place.
    """
    name = name_of(source)
    try:
        form = _form_by_name(source)
        text = read_text(source, MAX_BYTES)
        content = _READERS[form or _form_of(text)](text)
    except Wrong as wrong:
        raise InvalidArgument(f"{name}{wrong.place}: {wrong.what}") from None
    try:
        return Steps(name, _specs_in(content.value), content.lines)
    except InvalidArgument as error:
        raise _located(error, name, content.lines) from None


def _form_by_name(source: str) -> str | None:
    suffix = Path(source).suffix.lower()
    if suffix and suffix not in _SUFFIXES:
        raise Wrong(f"a file of steps is called {' '.join(_SUFFIXES)}, not {suffix}; - reads standard input")
    return _SUFFIXES.get(suffix)


def _form_of(text: str) -> str:
    """What a text without a suffix is. A whole object on its first line means JSON lines, unless it has the steps."""
    start = text.lstrip()
    if start.startswith("["):
        return "json"
    if not start.startswith("{"):
        return "yaml"
    try:
        first = json.loads(start.partition("\n")[0])
    except (ValueError, RecursionError):
        return "json"
    return "json" if "steps" in first else "jsonl"


def _specs_in(content: Any) -> list[AgentStepSpec]:
    if isinstance(content, Mapping) and "steps" in content:
        unknown = [FieldViolation(key, "unknown field") for key in content if key != "steps"]
        if unknown:
            raise InvalidArgument(violations=unknown)
        content = content["steps"]
    if not isinstance(content, list):
        raise InvalidArgument.of_field("steps", "must be a list of steps, alone or as {steps: [...]}")
    no_steps = [
        FieldViolation(f"steps[{index}]", "must be a step: a mapping with task_id, agent, description and prompt")
        for index, item in enumerate(content)
        if not isinstance(item, dict)
    ]
    if no_steps:
        raise InvalidArgument(violations=no_steps)
    return parse_specs(content)


def _located(error: InvalidArgument, name: str, lines: Lines) -> InvalidArgument:
    return InvalidArgument(
        None if error.violations else error.message,
        violations=[_with_place(wrong, name, lines(wrong.field)) for wrong in error.violations],
        reason=error.reason,
    )


def _with_place(wrong: FieldViolation, name: str, line: int | None) -> FieldViolation:
    place = f"{name} line {line}" if line else name
    return FieldViolation(f"{place}: {wrong.field}" if wrong.field else place, wrong.description)
