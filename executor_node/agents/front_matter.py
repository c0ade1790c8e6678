"""Front matter: what a Markdown file says of itself in YAML between two lines of `---`, and what is wrong, by line.

No YAML is a danger here: tags, anchors and aliases are refused, and so is what is nested deeply.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import yaml

MAX_AGENT_FILE_BYTES = 64 * 2**10
_MAX_DEPTH = 32
_MAX_KEY_SHOWN = 64
_MAX_SUGGESTIONS = 20
_FENCE = "---"


class Wrong(NamedTuple):
    """Something wrong in a file. Lines count from 1."""

    line: int
    what: str


class FileWrong(Exception):
    """All that was found wrong in one file."""

    def __init__(self, *wrongs: Wrong) -> None:
        self.wrongs = wrongs


class _Mark(Protocol):
    @property
    def line(self) -> int:
        """Counts from 0."""


class FrontMatter(NamedTuple):
    """The values of the keys, and the line of each key and list item: `env`, `env[0]`."""

    values: dict[str, Any]
    lines: dict[str, int]


def read_file(path: Path) -> str:
    """The text of an agent file. Raises FileWrong."""
    try:
        if not path.is_file():  # opening a FIFO would block
            raise FileWrong(Wrong(1, "no such file" if not path.exists() else "not a regular file"))
        with path.open("rb") as file:
            data = file.read(MAX_AGENT_FILE_BYTES + 1)
    except OSError as error:
        raise FileWrong(Wrong(1, f"cannot be read: {error.strerror}")) from None
    if len(data) > MAX_AGENT_FILE_BYTES:
        raise FileWrong(Wrong(1, f"larger than {MAX_AGENT_FILE_BYTES:,} bytes"))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileWrong(Wrong(data.count(b"\n", 0, error.start) + 1, "not UTF-8 text")) from None


def split(text: str) -> tuple[str, str]:
    """The front matter and the body. Both fences stand alone on their lines. Raises FileWrong."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if lines[0].rstrip() != _FENCE:
        raise FileWrong(Wrong(1, f"no front matter: the first line must be `{_FENCE}`"))
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() == _FENCE:
            return "\n".join(lines[1:number]), "\n".join(lines[number + 1 :]).strip()
    raise FileWrong(Wrong(1, f"the front matter has no end: a line `{_FENCE}`"))


Allow = Callable[[Collection[str]], Collection[str]]
"""The keys that a file with these keys may have."""


def parse(front: str, allow: Allow) -> FrontMatter:
    """What the front matter says; other keys than `allow` says are wrong. Raises FileWrong."""
    try:
        _refuse_tricks(yaml.parse(front, Loader=yaml.SafeLoader))
        loader = yaml.SafeLoader(front)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise FileWrong(Wrong(1, "the front matter must be a list of `key: value`"))
        return _front_matter(node, loader, allow({str(key.value) for key, _ in node.value}))
    except yaml.MarkedYAMLError as error:
        line = _line(error.problem_mark or error.context_mark)
        raise FileWrong(Wrong(line, f"no valid YAML: {error.problem or error.context}")) from None
    except yaml.reader.ReaderError as error:
        line = front.count("\n", 0, error.position) + 2
        raise FileWrong(Wrong(line, "no valid YAML: a character that is not allowed")) from None


def _refuse_tricks(events: Iterable[yaml.Event]) -> None:
    """Front matter is plain data: what makes YAML grow, nest or run code is refused before anything is built."""
    depth = 0
    for event in events:
        line = _line(event.start_mark)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise FileWrong(Wrong(line, "YAML anchors and aliases are not allowed"))
        if getattr(event, "tag", None):
            raise FileWrong(Wrong(line, "YAML tags are not allowed"))
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise FileWrong(Wrong(line, f"nested deeper than {_MAX_DEPTH} levels"))


def _front_matter(node: yaml.MappingNode, loader: yaml.SafeLoader, keys: Collection[str]) -> FrontMatter:
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    wrongs = []
    for key_node, value_node in node.value:
        key, line = key_node.value, _line(key_node.start_mark)
        if not isinstance(key, str):
            wrongs.append(Wrong(line, "a key must be a word"))
        elif key in lines:
            wrongs.append(Wrong(line, f"duplicate key {_shown(key)}, first on line {lines[key]}"))
        elif key not in keys:
            lines[key] = line
            suggestion = _suggestion(key, keys) if len(wrongs) < _MAX_SUGGESTIONS else ""
            wrongs.append(Wrong(line, f"unknown key {_shown(key)}{suggestion}"))
        else:
            lines[key] = line
            lines.update(_lines_of_items(key, value_node))
            values[key] = _value_of(value_node, loader)
    if wrongs:
        raise FileWrong(*wrongs)
    return FrontMatter(values, lines)


def _lines_of_items(key: str, node: yaml.Node) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield f"{key}[{index}]", _line(item.start_mark)


def _value_of(node: yaml.Node, loader: yaml.SafeLoader) -> Any:
    try:
        return loader.construct_object(node, deep=True)
    except ValueError as error:  # as `2024-99-99` or a number of thousands of digits
        raise FileWrong(Wrong(_line(node.start_mark), f"no valid value: {error}")) from None


def line_of(field: str, lines: Mapping[str, int]) -> int:
    """The line of the field, or of the nearest thing around it whose line is known."""
    while field and field not in lines:
        field = field[: max(field.rfind("."), field.rfind("["), 0)]
    return lines.get(field, 1)


def _line(mark: _Mark | None) -> int:
    """The line in the file: the front matter begins on its second line."""
    return mark.line + 2 if mark else 1


def _shown(key: str) -> str:
    return f"`{key[:_MAX_KEY_SHOWN]}`" if key.isprintable() else repr(key[:_MAX_KEY_SHOWN])


def _suggestion(key: str, keys: Collection[str]) -> str:
    close = difflib.get_close_matches(key[:_MAX_KEY_SHOWN], list(keys), n=1)
    return f" (did you mean `{close[0]}`?)" if close else ""
