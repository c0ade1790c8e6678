"""The forms in which steps are written, and where in them a field stands. Here JSON and JSON lines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from fanfold.strict_json import is_deeper, refuse_constant

MAX_DEPTH = 128
"""How deep values may be nested."""

_MAX_LENGTH_TO_FIND_LINES = 2**20
_PATH_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")

Lines = Callable[[str], int | None]
"""Gives the line, from 1, where a field such as `steps[3].prompt` stands, if that is known."""


class Wrong(Exception):
    """The text is not in the form that it should be in."""

    def __init__(self, what: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.place = "".join(f" {name} {at}" for name, at in (("line", line), ("column", column)) if at)


@dataclass(frozen=True, slots=True)
class Content:
    """What a text says: values as in JSON."""

    value: Any
    lines: Lines


def read_json(text: str) -> Content:
    """What JSON text says. Raises Wrong."""

    @cache
    def root() -> yaml.Node | None:
        try:
            return yaml.compose(text, yaml.SafeLoader) if len(text) <= _MAX_LENGTH_TO_FIND_LINES else None
        except (yaml.YAMLError, RecursionError):  # nearly all JSON is YAML
            return None

    return Content(_json_value(text), lambda field: line_below(root(), field))


def read_json_lines(text: str) -> Content:
    """What a text says that has one JSON value a line. Raises Wrong."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    values = [_json_value(line, number) for number, line in lines]

    def line_of(field: str) -> int | None:
        match path_of(field):
            case [_, int(index), *_] if index < len(lines):
                return lines[index][0]
        return None

    return Content(values, line_of)


def _json_value(text: str, first_line: int = 1) -> Any:
    try:
        value = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        raise Wrong(f"is no JSON: {error.msg}", first_line + error.lineno - 1, error.colno) from None
    except RecursionError:
        raise too_deep() from None
    except ValueError as error:  # ours, or a number with too many digits
        raise Wrong(str(error), None if "\n" in text else first_line) from None
    refuse_depth(value)
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"has the key {key!r} twice in one object")
            seen.add(key)
    return value


def refuse_depth(value: Any) -> None:
    """Raise Wrong if `value` is nested deeper than MAX_DEPTH, which others might not survive."""
    if is_deeper(value, MAX_DEPTH):
        raise too_deep()


def too_deep() -> Wrong:
    """The error for what is nested too deeply."""
    return Wrong(f"must be nested at most {MAX_DEPTH} levels deep")


def path_of(field: str) -> list[int | str]:
    """The parts of a field's name: `steps[3].prompt` is steps, 3, prompt."""
    return [int(index) if index else name for index, name in _PATH_PART.findall(field)]


def line_below(node: yaml.Node | None, field: str) -> int | None:
    """The line of the deepest part of `field` that is there. A list at the top is that of the steps."""
    path = path_of(field)
    if node is None or not path:
        return None
    line: int = node.start_mark.line
    for part in path[1:] if isinstance(node, yaml.SequenceNode) else path:
        match node:
            case yaml.MappingNode():
                found = next((pair for pair in node.value if pair[0].value == part), None)
                if found is None:
                    break
                line, node = found[0].start_mark.line, found[1]
            case yaml.SequenceNode() if isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line
            case _:
                break
    return line + 1
