"""Settings in a file: YAML, or TOML if it is called so."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import yaml

from fanfold.errors import InvalidArgument
from fanfold.settings.layers import Layer, Location


def file_layer(file: Path) -> Layer:
    """What is in a file. Raises InvalidArgument, naming file and line, if that makes no sense; never a value."""
    try:
        text = file.read_text("utf-8-sig")  # as editors on Windows write it
    except OSError as error:
        raise _unreadable(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _unreadable(f"{file}: must be UTF-8") from None
    return _toml_layer(file, text) if file.suffix == ".toml" else _yaml_layer(file, text)


def _unreadable(why: str) -> InvalidArgument:
    return InvalidArgument(why, reason="SETTINGS_UNREADABLE")


def _toml_layer(file: Path, text: str) -> Layer:
    try:
        return Layer(tomllib.loads(text), lambda _: f"in {file}")
    except tomllib.TOMLDecodeError as error:
        raise _unreadable(f"{file}: {error}") from None
    except RecursionError:
        raise _unreadable(f"{file}: nests too deep") from None


def _yaml_layer(file: Path, text: str) -> Layer:
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        values = loader.construct_document(root) if root else {}
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise _unreadable(f"{file}{line}: {error.problem}") from None
    except (
        yaml.YAMLError,
        ValueError,
        TypeError,
        RecursionError,
    ):  # as of dates that are none, and keys that are lists
        raise _unreadable(f"{file}: must be YAML text") from None
    if not isinstance(values, dict):
        raise _unreadable(f"{file}: must be a mapping of settings")
    return Layer(values, lambda location: f"in {file} line {_line(root, location)}")


class _Loader(yaml.SafeLoader):
    """Refuses keys that are given twice, of which YAML silently takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is given twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _line(node: yaml.Node | None, location: Location) -> int:
    line = 0 if node is None else node.start_mark.line
    for part in location:
        match node:
            case yaml.MappingNode():
                found = next(((key, value) for key, value in node.value if key.value == str(part)), None)
                if found is None:
                    break
                line, node = found[0].start_mark.line, found[1]
            case yaml.SequenceNode():
                node = node.value[int(part)]
                line = node.start_mark.line
            case _:
                break
    return line + 1
