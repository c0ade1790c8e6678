"""Tells a step's progress at a bounded rate, however much its agent writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from executor_node.told import MAX_TEXT, Progress
from fanfold.model.step import TextWritten

WINDOW_SECONDS = 0.1
MAX_EVENTS_A_WINDOW = 50
"""Tools and turns told in a window; further ones are left out."""


class ProgressTeller:
    """Joins texts that come within a tenth of a second, and thins a flood of other events. Keeps their order."""

    __slots__ = ("_events", "_loop", "_tell", "_text", "_timer", "_window_end")

    def __init__(self, tell: Callable[[Progress], None]) -> None:
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._window_end = 0.0
        self._events = 0
        self._text = ""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, progress: Progress) -> None:
        """Tell this, now or soon."""
        if self._loop.time() >= self._window_end:
            self._open_window()
        elif isinstance(progress, TextWritten):
            self._text = (self._text + progress.text)[-MAX_TEXT:]
            if self._timer is None:
                self._timer = self._loop.call_at(self._window_end, self._open_window)
            return
        if self._events < MAX_EVENTS_A_WINDOW:
            self._events += 1
            self._flush()
            self._tell(_cut(progress))

    def close(self) -> None:
        """Tell what is left."""
        self._flush()

    def _open_window(self) -> None:
        self._window_end = self._loop.time() + WINDOW_SECONDS
        self._events = 0
        self._flush()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._text:
            text, self._text = self._text, ""
            self._tell(TextWritten(text=text))


def _cut(progress: Progress) -> Progress:
    if isinstance(progress, TextWritten) and len(progress.text) > MAX_TEXT:
        return TextWritten(text=progress.text[-MAX_TEXT:])
    return progress
