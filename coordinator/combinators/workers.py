"""How many at once: a number that follows a hint while the work goes on (C10)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress

HINT_INTERVAL = 0.2
"""Seconds between two looks at the hint, for when it grows while every worker is busy."""


class Workers:
    """Does `work` for every index, as many at once as `wanted` says, at least one; the number is followed.

    A moving number of tasks take the next index each: far cheaper than a task for each of 100,000 steps.
    """

    def __init__(
        self, indices: Iterable[int], work: Callable[[int], Awaitable[None]], wanted: Callable[[], int]
    ) -> None:
        self._indices: Iterator[int] = iter(indices)
        self._work = work
        self._hint = wanted
        self._workers = 0
        self._all_taken = asyncio.Event()

    async def run(self) -> None:
        """Do all of it. What `work` raises cancels the rest and is raised in an ExceptionGroup."""
        async with asyncio.TaskGroup() as tasks:
            while not self._all_taken.is_set():
                for _ in range(self._wanted() - self._workers):
                    if not self._start_one(tasks):
                        break
                await _wait(self._all_taken, HINT_INTERVAL)

    def _start_one(self, tasks: asyncio.TaskGroup) -> bool:
        """Start a worker with an index of its own, if there is one left: never more workers than work."""
        index = next(self._indices, None)
        if index is None:
            self._all_taken.set()
            return False
        self._workers += 1
        tasks.create_task(self._go_on(index))
        return True

    def _wanted(self) -> int:
        return max(1, self._hint())

    async def _go_on(self, index: int | None) -> None:
        try:
            while index is not None:
                await self._work(index)
                if self._workers > self._wanted():
                    return
                index = next(self._indices, None)
            self._all_taken.set()
        finally:
            self._workers -= 1


class Slots:
    """Lets as many into its `async with` block at once as `wanted` says, at least one, in the order of their coming."""

    def __init__(self, wanted: Callable[[], int]) -> None:
        self._wanted = wanted
        self._taken = 0
        self._freed = asyncio.Event()
        self._first_in_line = asyncio.Lock()

    async def __aenter__(self) -> None:
        async with self._first_in_line:
            while self._taken >= max(1, self._wanted()):
                self._freed.clear()
                await _wait(self._freed, HINT_INTERVAL)
            self._taken += 1

    async def __aexit__(self, *_error: object) -> None:
        self._taken -= 1
        self._freed.set()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
