"""The calls that run now: who is let in, who is waited for, who is cut short."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import structlog

from fanfold.errors import FanfoldError
from fanfold.rpc.call import Call
from fanfold.rpc.interceptor import Context
from fanfold.rpc.layers import stopping

log = structlog.get_logger(__name__)


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
        self._working: dict[Call, asyncio.Task[object]] = {}
        self._unanswered: dict[Context, Call] = {}
        self._changed = asyncio.Event()
        self._answered_at = -math.inf

    @contextmanager
    def admitted(self, call: Call) -> Iterator[None]:
        """Know the call while its servicer works, and on until its answer is sent.

        Raises:
            Unavailable: the server drains; with a retry delay.
        """
        if self.draining and call.method.service not in self._attendants:
            raise stopping()
        task = asyncio.current_task()
        assert task is not None
        self._working[call] = task
        self._unanswered[call.context] = call
        call.context.add_done_callback(self._answered)  # type: ignore[arg-type]  # stubs take no function
        try:
            yield
        finally:
            del self._working[call]
            self._changed.set()

    async def wait(self, seconds: float) -> bool:
        """Whether all calls that are waited for are answered within `seconds`."""
        return await self._wait(lambda: any(map(self._is_awaited, self._unanswered.values())), seconds)

    async def rest(self, seconds: float) -> None:
        """Go on refusing calls for `seconds` after the last answer that was waited for: who had it may ask again."""
        await asyncio.sleep(max(0.0, self._answered_at + seconds - time.monotonic()))

    async def cut_short(self, seconds: float) -> bool:
        """Cancel what works on all calls and wait for its cleaning up. Whether that took less than `seconds`."""
        for call, task in self._working.items():
            if call.cut_short is None:
                call.cut_short = stopping()
                task.cancel()
        return await self._wait(lambda: bool(self._working), seconds)

    def dismiss(self, dismissal_of: Callable[[Call], FanfoldError | None]) -> None:
        """Cancel what works on the calls that are to end, and tell them why."""
        for call, task in self._working.items():
            if call.cut_short is None and (why := dismissal_of(call)) is not None:
                call.cut_short = why
                log.info("sent away", method=call.method.path, principal=call.principal.name, why=why.reason)
                task.cancel()

    def methods(self) -> list[str]:
        """The methods whose calls are waited for, for people."""
        return sorted({call.method.path for call in self._unanswered.values() if self._is_awaited(call)})

    async def _wait(self, lasts: Callable[[], bool], seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while lasts():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _answered(self, context: Context) -> None:
        if self._is_awaited(self._unanswered.pop(context)):
            self._answered_at = time.monotonic()
        self._changed.set()

    def _is_awaited(self, call: Call) -> bool:
        return call.method.service not in self._attendants and call.method.path not in self._unattended
