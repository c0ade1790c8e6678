"""How faults are worded: places as JSON paths, everything on one line and of bounded length."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MAX_PATH_TOLD = 200
_PLAIN_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")


def json_path(parts: Iterable[str | int], *, root: str = "$") -> str:
    """The place that keys and indexes lead to, as `$.items[3]['other name']`."""
    return root + "".join(map(_step, parts))


def _step(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if _PLAIN_NAME.fullmatch(part) else f"[{part!r}]"


def shorten(text: str, limit: int) -> str:
    """The text, or its beginning and end with an ellipsis between them, at most `limit` characters."""
    if len(text) <= limit:
        return text
    tail = limit // 4
    return f"{text[: limit - tail - 1]}…{text[-tail:]}"


def one_line(text: str) -> str:
    """The text without line breaks and other characters that are not for printing."""
    return "".join(character if character.isprintable() else " " for character in text)


def at(path: str, why: str) -> str:
    """What is wrong at a place, on one line."""
    return one_line(f"{shorten(path, _MAX_PATH_TOLD)}: {why}")
