"""Source anchors: what a step's tools read, as its outcome tells it (C4)."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from fanfold.model.checks import OneLine
from fanfold.model.step import MAX_ANCHOR_BYTES, MAX_ANCHORS, SourceAnchor

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_LINES = re.compile(r"[0-9]{1,12}(-[0-9]{1,12})?")
_MAX_TOOL_LENGTH = 128


class Anchors:
    """Collects the anchors of one step: each once, the first 64, in the order they came.

    What cannot be told is left out, not cut: a place outside the workspace, an anchor of more than 4 KiB. Observing
    never raises, so a tool that succeeded cannot fail by it.
    """

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)
        # A dictionary as ordered set: tools that run in threads may observe at the same time.
        self._anchors: dict[SourceAnchor, None] = {}

    @property
    def collected(self) -> tuple[SourceAnchor, ...]:
        """The anchors so far."""
        return tuple(self._anchors)[:MAX_ANCHORS]

    def observe(self, tool: str, url_or_path: str, lines: str = "") -> None:
        """Record a place that a successful tool call read.

        Args:
            tool: the tool's name.
            url_or_path: a URL, of which scheme, host and path are kept, or a path in the workspace.
            lines: "3" or "3-17"; anything else counts as the whole.
        """
        if len(self._anchors) >= MAX_ANCHORS:
            return
        place = _place_of_url(url_or_path) if _URL.match(url_or_path) else self._place_of_path(url_or_path)
        anchor = SourceAnchor(tool=tool, url_or_path=place, lines=lines if _LINES.fullmatch(lines) else "")
        if place and 0 < len(tool) <= _MAX_TOOL_LENGTH and _fits(anchor):
            self._anchors.setdefault(anchor)

    def _place_of_path(self, path: str) -> str:
        place = PurePosixPath(path)
        if place.is_absolute():
            if not place.is_relative_to(self._root):
                return ""
            place = place.relative_to(self._root)
        return "" if ".." in place.parts else str(place)


def _place_of_url(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def _fits(anchor: SourceAnchor) -> bool:
    text = anchor.tool + anchor.url_or_path + anchor.lines
    try:
        return len(text.encode()) <= MAX_ANCHOR_BYTES and OneLine.predicate(text)
    except UnicodeEncodeError:
        return False
