"""Steps written in YAML, of which only what JSON can say is taken."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NoReturn

import yaml

from fanfold.cli.forms import Content, Wrong, line_below, refuse_depth, too_deep

MAX_CHARACTERS = 8 * 2**20
"""YAML takes some seconds a megabyte to read."""

MAX_VALUES = 2_000_000
"""Most values that a text may stand for when its aliases are written out."""

_TAG = "tag:yaml.org,2002:"


def read_yaml(text: str) -> Content:
    """What YAML text says. Raises Wrong."""
    if len(text) > MAX_CHARACTERS:
        raise Wrong(f"must be at most {MAX_CHARACTERS // 2**20} MiB as YAML; use JSON lines for more steps")
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            raise Wrong("is empty")
        _Survey().look_at(root)
        value = loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Wrong(f"is no YAML: {error.problem or error.context}", *_position(mark)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Wrong(f"is no YAML: {error.reason}", line) from None
    except RecursionError:
        raise too_deep() from None
    except ValueError as error:  # such as a number with too many digits
        raise Wrong(str(error)) from None
    refuse_depth(value)
    return Content(value, lambda field: line_below(root, field))


class _Loader(yaml.SafeLoader):
    """Loads what JSON can say. Dates stay the text that they are written as; other types are refused."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the base class has it so
        first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_TAG}timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _finite_float(loader: _Loader, node: yaml.ScalarNode) -> float:
    value: float = loader.construct_yaml_float(node)
    if not math.isfinite(value):
        raise _wrong_at(node, f"{node.value} is no JSON value")
    return value


def _refuse(_loader: _Loader, node: yaml.Node) -> NoReturn:
    raise _wrong_at(node, f"has a value of the type {node.tag.removeprefix(_TAG)}, which JSON has not")


_Loader.add_constructor(f"{_TAG}float", _finite_float)
for _tag in (None, *(_TAG + name for name in ("binary", "omap", "pairs", "set", "timestamp"))):
    _Loader.add_constructor(_tag, _refuse)


class _Survey:
    """Looks at all nodes, each once, before anything is made of them."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}

    def look_at(self, node: yaml.Node) -> int:
        """How many values `node` stands for. Raises Wrong if that is too many, or if a key is wrong."""
        known = self._sizes.get(id(node))
        if known is not None:
            if known == 0:
                raise _wrong_at(node, "has an alias that contains itself")
            return known
        self._sizes[id(node)] = 0
        size = 1
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
        for child in _children(node):
            size += self.look_at(child)
            if size > MAX_VALUES:
                raise Wrong(f"has aliases that stand for more than {MAX_VALUES:,} values")
        self._sizes[id(node)] = size
        return size


def _check_keys(node: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if key.tag == f"{_TAG}merge":
            continue
        if not isinstance(key, yaml.ScalarNode) or key.tag != f"{_TAG}str":
            raise _wrong_at(key, "has a key that is no text; put it in quotes")
        if key.value in seen:
            raise _wrong_at(key, f"has the key {key.value!r} twice in one mapping")
        seen.add(key.value)


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    match node:
        case yaml.MappingNode():
            for key, value in node.value:
                yield key
                yield value
        case yaml.SequenceNode():
            yield from node.value


def _wrong_at(node: yaml.Node, what: str) -> Wrong:
    return Wrong(what, *_position(node.start_mark))


def _position(mark: yaml.Mark | None) -> tuple[int | None, int | None]:
    return (None, None) if mark is None else (mark.line + 1, mark.column + 1)
