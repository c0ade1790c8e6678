"""The calls that run now: who is let in, who is waited for, who is cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from fanfold.rpc.call import Call
from fanfold.rpc.layers import stopping


class RunningCalls:
    """Lets calls in until draining, and knows those that run.

    Args:
        attendants: services that tell about the server, as its health. Their calls are let in to the end, and nobody
            waits for them: following a server's health must not keep it alive.
        unattended: paths of other methods whose calls nobody waits for, since they do not end by themselves.
    """

    def __init__(self, *, attendants: Collection[str], unattended: Collection[str]) -> None:
        self.draining = False
        self._attendants = frozenset(attendants)
        self._unattended = frozenset(unattended)
        self._tasks: dict[Call, asyncio.Task[object]] = {}
        self._one_ended = asyncio.Event()

    @contextmanager
    def admitted(self, call: Call) -> Iterator[None]:
        """Hold the call's place. Raises Unavailable, with a retry delay, when draining."""
        if self.draining and call.method.service not in self._attendants:
            raise stopping()
        task = asyncio.current_task()
        assert task is not None
        self._tasks[call] = task
        try:
            yield
        finally:
            del self._tasks[call]
            self._one_ended.set()

    def awaited(self) -> int:
        """How many calls run that are waited for."""
        return sum(map(self._is_awaited, self._tasks))

    async def wait(self, seconds: float) -> bool:
        """Whether all calls that are waited for end within `seconds`."""
        return await self._wait(self.awaited, seconds)

    async def cut_short(self, seconds: float) -> bool:
        """Cancel all calls and wait for their cleaning up. Whether that took less than `seconds`."""
        for call, task in self._tasks.items():
            if not call.cut_short:
                call.cut_short = True
                task.cancel()
        return await self._wait(lambda: len(self._tasks), seconds)

    async def _wait(self, count: Callable[[], int], seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while count():
                    self._one_ended.clear()
                    await self._one_ended.wait()
        except TimeoutError:
            return False
        return True

    def _is_awaited(self, call: Call) -> bool:
        return call.method.service not in self._attendants and call.method.path not in self._unattended
