"""The Dockerfile's stages, and their steps done on this machine, as nothing builds images here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parent.parent.parent

_IN_A_NAMESPACE = """
for folder in /opt/*/; do mkdir -p "$0$folder"; mount --bind "$folder" "$0$folder"; done
mount --rbind "$0/opt" /opt
cd "$1"
exec sh -euc "$2"
"""
"""Puts a folder in the place of /opt, without hiding what is there; that is seen by this command alone."""


@dataclass(frozen=True)
class Stage:
    """A stage: what it begins from, and its instructions, as pairs of their name and all else."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def given(self, name: str) -> list[str]:
        """What all instructions of a name say."""
        return [text for each, text in self.instructions if each == name]

    def variables(self) -> dict[str, str]:
        """Those that it sets itself."""
        pairs = (word.partition("=") for text in self.given("ENV") for word in text.split())
        return {name: value for name, _, value in pairs}


def stages() -> dict[str, Stage]:
    """The stages of the Dockerfile, by name."""
    found: dict[str, Stage] = {}
    variables: dict[str, str] = {}
    stage: Stage | None = None
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        name, _, text = line.partition(" ")
        match name:
            case "" | "#":
                pass
            case "ARG":
                variable, _, value = text.partition("=")
                variables[variable] = value
            case "FROM":
                base, _, named = text.partition(" AS ")
                for variable, value in variables.items():
                    base = base.replace(f"${{{variable}}}", value)
                stage = found[named] = Stage(named, base)
            case _:
                assert stage is not None
                stage.instructions.append((name, text))
    return found


def built(stage: Stage, before: Path | None, folder: Path, inherited: Mapping[str, str] = MappingProxyType({})) -> Path:
    """The root of a stage, of which only /opt is told; it begins with what the stage before has left, variables too."""
    if before is not None:
        shutil.copytree(before, folder, symlinks=True)
    work = "/opt/source"
    for name, text in stage.instructions:
        match name:
            case "WORKDIR":
                work = text
                (folder / work[1:]).mkdir(parents=True, exist_ok=True)
            case "COPY":
                *sources, target = text.split()
                _copy(sources, folder / work[1:] / target)
            case "RUN":
                _run(folder, work, text, {**inherited, **stage.variables()})
    return folder


def _copy(sources: list[str], target: Path) -> None:
    for source in sources:
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, target)


def _run(folder: Path, work: str, command: str, variables: Mapping[str, str]) -> None:
    path = f"{sys.base_prefix}/bin:/usr/sbin:/usr/bin:/bin"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-euc", _IN_A_NAMESPACE, str(folder), work, command],
        env={name: value for name, value in os.environ.items() if name == "HOME" or name.startswith("PIP_")}
        | {"PATH": path, "PIP_NO_COMPILE": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
