"""Starts of steps that wait a moment before they are told: a step that is over by then tells both in one word."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fanfold.model.step import StepStarted

MOMENT_SECONDS = 0.05
"""How long a start waits at most. Nobody misses it meanwhile, and a message is half of what a short step costs."""


class Starts:
    """The starts that coordinators who need not hear of them apart have not been told; `tell` tells one."""

    def __init__(self, tell: Callable[[str, StepStarted], None]) -> None:
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, tuple[float, StepStarted]] = {}
        """By execution, in the order in which they are due."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, execution_id: str, started: StepStarted) -> None:
        """Tell this start in a moment."""
        due = self._loop.time() + MOMENT_SECONDS
        self._waiting[execution_id] = due, started
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._tell_due)

    def tell(self, execution_id: str) -> None:
        """Tell an execution's start now, if it waits: something else is to be told of it."""
        waiting = self._waiting.pop(execution_id, None)
        if waiting is not None:
            self._tell(execution_id, waiting[1])

    def drop(self, execution_id: str) -> None:
        """The execution's ending is told, and its start with it."""
        self._waiting.pop(execution_id, None)

    def close(self) -> None:
        """Tell nothing any more."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _tell_due(self) -> None:
        now = self._loop.time()
        while self._waiting:
            execution_id, (due, _) = next(iter(self._waiting.items()))
            if due > now:
                self._timer = self._loop.call_at(due, self._tell_due)
                return
            self.tell(execution_id)
        self._timer = None
