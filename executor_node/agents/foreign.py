"""Agent files that coding agents already use: those of Claude Code and of opencode, taken as they are.

Such a file says nothing of a kind: the coding agent that it was written for carries out its steps, by that preset. Keys
that say what this node cannot arrange are left out and named.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from executor_node.agents import AgentDefinition
from executor_node.agents.command.definition import Access, Preset
from executor_node.agents.front_matter import FrontMatter, Wrong
from fanfold.model.node import AgentKind

_SHARED = frozenset({"name", "description", "model", "tools", "isolation"})
_OURS = frozenset(field.name for field in fields(AgentDefinition)) - _SHARED
"""Keys that only files of nodes have. One that lacks its kind is not to become something else for it."""
_OPENCODES = frozenset({"mode", "permission", "temperature", "top_p"})
_TAKEN = frozenset({"name", "description", "model", "tools", "permissionMode"})
_EDITORS = frozenset({"edit", "write", "multiedit", "notebookedit", "patch"})
_MODES = {"acceptEdits": Access.WRITE, "bypassPermissions": Access.FULL}


def is_foreign(keys: Collection[str]) -> bool:
    """Whether a file with these keys was written for a coding agent, and not for a node."""
    return "description" in keys and not _OURS.intersection(keys)


def adapted(matter: FrontMatter, path: Path) -> tuple[FrontMatter, list[Wrong]]:
    """The file as one of a node, and what of it is left out."""
    given = matter.values
    preset = Preset.OPENCODE if _OPENCODES.intersection(given) else Preset.CLAUDE_CODE
    values: dict[str, Any] = {
        "name": given.get("name", _kebab_case(path.stem)),
        "description": _one_line(given["description"]),
        "kind": AgentKind.COMMAND,
        "preset": preset,
        "access": _access(given),
    }
    if given.get("model", "inherit") != "inherit":
        values["model"] = given["model"]
    # What the file does not say has the line of what made it known for one of these.
    lines = {key: matter.lines.get(key, matter.lines["description"]) for key in values}
    return FrontMatter(values, lines), list(_left_out(matter, preset))


def _left_out(matter: FrontMatter, preset: Preset) -> Iterator[Wrong]:
    for key, line in matter.lines.items():
        if key in matter.values and key not in _TAKEN:
            yield Wrong(line, f"`{key}` is not supported for agents of {preset}, and left out")
    if "tools" in matter.values:
        access = _access(matter.values)
        yield Wrong(matter.lines["tools"], f"`tools` is taken as `access: {access}` only")


def _access(given: Mapping[str, Any]) -> Access:
    mode = given.get("permissionMode")
    if isinstance(mode, str) and mode in _MODES:
        return _MODES[mode]
    match given.get("tools"):
        case str(words):
            tools = re.split(r"[,\s]+", words)
        case list(words):
            tools = [str(word) for word in words]
        case dict(switches):
            tools = [str(name) for name, on in switches.items() if on is True]
        case _:
            tools = []
    return Access.WRITE if any(tool.lower() in _EDITORS for tool in tools) else Access.READ


def _one_line(description: Any) -> Any:
    return " ".join(description.split())[:4096] if isinstance(description, str) else description


def _kebab_case(stem: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", stem.lower()))
