"""Patterns for files, and paths as people are shown them. Worker processes import this; it stays light."""

from __future__ import annotations

import fnmatch
import re

from fanfold.agent import AgentFailed

MAX_PATH = 4096
"""As much as Linux takes, with the NUL at the end."""

MAX_PATTERN_PARTS = 64

_MAX_SHOWN = 200


class Glob:
    """A pattern, matched name by name, so that a walk enters no folder below which nothing can match.

    The places where matching may stand are indices of the pattern's parts; `**` is None.
    """

    def __init__(self, pattern: str) -> None:
        parts = [part for part in pattern.split("/") if part not in {"", "."}]
        if not parts or len(pattern) > MAX_PATH:
            raise AgentFailed(f"not a pattern for files: {shown(pattern)!r}")
        if ".." in parts or pattern.startswith("/"):
            raise AgentFailed(f"outside the workspace: {shown(pattern)}")
        # `**` after `**` says nothing more, but would multiply the places.
        parts = [part for part, former in zip(parts, ("", *parts), strict=False) if not part == former == "**"]
        if len(parts) > MAX_PATTERN_PARTS:
            raise AgentFailed(f"a pattern of more than {MAX_PATTERN_PARTS} parts: {shown(pattern)}")
        self._names = [None if part == "**" else re.compile(fnmatch.translate(part)) for part in parts]
        self._hidden = [part.startswith(".") for part in parts]
        self.start = self._spread({0})

    def enter(self, places: frozenset[int], folder: str) -> frozenset[int]:
        """The places after entering a folder; none if nothing below can match."""
        hidden = folder.startswith(".")
        inner = set()
        for place in places:
            name = self._names[place]
            if hidden and not self._hidden[place]:
                continue
            if name is None:
                inner.add(place)
            elif place + 1 < len(self._names) and name.match(folder):
                inner.add(place + 1)
        return self._spread(inner)

    def matches(self, places: frozenset[int], file: str) -> bool:
        """Whether a file in a folder with these places matches."""
        last = len(self._names) - 1
        if last not in places:
            return False
        name = self._names[last]
        return name is None or name.match(file) is not None

    def _spread(self, places: set[int]) -> frozenset[int]:
        """Adds the places behind each `**`, which may stand for no folder at all."""
        last = len(self._names) - 1
        behind = {place + 1 for place in places if place < last and self._names[place] is None}
        return frozenset(places | behind)


def shown(path: str) -> str:
    """The path as one short line."""
    line = "".join(character if character.isprintable() else "?" for character in path[:_MAX_SHOWN])
    return line + ("..." if len(path) > _MAX_SHOWN else "")
