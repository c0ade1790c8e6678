"""What a run is to a Python program: to be awaited, or iterated for its events."""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from fanfold.clients.coordinator import Bookmark, CoordinatorClient, Terms
from fanfold.clients.run_call import RunCall
from fanfold.errors import Cancelled, FanfoldError, InternalError, Unavailable
from fanfold.model.run import (
    Budget,
    BudgetExhausted,
    EventDetail,
    RunEnded,
    RunEvent,
    RunStarted,
    RunState,
    RunStepEvent,
    WaitingChanged,
)
from fanfold.model.step import StepEnded, StepOutcome
from fanfold.sdk.servers import Servers
from fanfold.sdk.streams import RunStream

STOP_SECONDS = 30.0
"""Longest wait for a cancelled run to be gone: more than a coordinator takes."""

Event = TypeVar("Event")
Result = TypeVar("Result")


class MeshRun(ABC, Generic[Event, Result]):
    """A run to be awaited or iterated. It runs once: awaiting it again gives the result that is there.

    `reconnect_timeout` is for how many seconds its coordinators may be away before it fails.
    """

    def __init__(
        self,
        servers: Servers,
        on_event: Callable[[Event], None] | None,
        terms: Terms,
        *,
        reconnect_timeout: float = 0.0,
    ) -> None:
        refuse_async(on_event)
        self._servers = servers
        self._on_event = on_event
        self._terms = terms
        self._reconnect_timeout = reconnect_timeout
        self._stream: RunStream | None = None
        self._outcomes: list[StepOutcome | None] = []
        self._result: Result | None = None
        self._waiting_on = ""
        self._ended: RunEnded | None = None
        self._is_lost = False
        self.run_id = ""
        """The run's id, once it has started."""
        self.budget = None if terms.budget_tokens is None else Budget(limit=terms.budget_tokens)
        """The run's budget as it was last told, or None if it has none (C13)."""

    @property
    def result(self) -> Result:
        """The result. Raises RuntimeError before the last event."""
        if self._result is None:
            raise RuntimeError("the run has not ended; await it or iterate to its end first")
        return self._result

    @property
    def request_id(self) -> str:
        """The id of the request; a journaled run is gone on with by it."""
        return self._terms.request_id

    @property
    def has_ended(self) -> bool:
        """Whether the mesh has told its end: nothing of it runs any more."""
        return self._ended is not None

    @property
    def error(self) -> str:
        """Why the run has not completed, once it has ended; empty if it has."""
        return self._ended.error if self._ended is not None else ""

    @property
    def outcomes(self) -> tuple[StepOutcome | None, ...]:
        """What has come so far, in the order of what was given; None where nothing has.

        It stays readable when the run is cancelled or the mesh is lost, so that finished work is not.
        """
        return tuple(self._outcomes)

    @property
    def waiting_on(self) -> str:
        """What the run waits on while nothing moves, in words; also a mesh that was lost (C42)."""
        if self._ended is not None:
            return ""
        return (self._stream.trouble if self._stream else "") or self._waiting_on

    def __await__(self) -> Generator[Any, None, Result]:
        return self._run_to_end().__await__()

    async def __aiter__(self) -> AsyncIterator[Event]:
        async with aclosing(self._batches(EventDetail.PROGRESS)) as batches:
            async for events in batches:
                for event in self._heeded(events):
                    yield event

    async def _run_to_end(self) -> Result:
        if self._result is None:
            detail = EventDetail.OUTCOMES if self._on_event is None else EventDetail.PROGRESS
            async with aclosing(self._batches(detail)) as batches:
                async for events in batches:
                    for _ in self._heeded(events):
                        pass
        return self.result

    def _heeded(self, events: Iterable[Event]) -> Iterator[Event]:
        """Each event when it has been told to whoever listens."""
        for event in events:
            if self._on_event is not None:
                self._on_event(event)
            yield event

    async def _batches(self, detail: EventDetail) -> AsyncGenerator[Sequence[Event], None]:
        """The events as they come: many at once."""
        if self._stream is not None:
            raise RuntimeError("the run has begun already; a second one needs a second call")
        self._outcomes = [None] * self._check()
        begin = partial(self._begin, detail)
        stream = RunStream(self._servers, begin, detail, reconnect_timeout=self._reconnect_timeout)
        self._stream = stream
        try:
            while not self.has_ended:
                yield await self._hear(stream)
        finally:
            try:
                if not self.has_ended and not self._is_lost and stream.has_begun:
                    await self._stop(stream)
            finally:
                await stream.close()
        self._result = self._conclude()

    async def _stop(self, stream: RunStream) -> None:
        """Have the run cancelled, and wait until it is gone, with what comes of it until then (C27)."""
        with suppress(FanfoldError, TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                while not stream.run_id:
                    await self._hear(stream)
                await stream.stop()
                while not self.has_ended:
                    await self._hear(stream)

    async def _hear(self, stream: RunStream) -> list[Event]:
        """Keep what the next events say, all of them before any is told, and give what is told of them."""
        try:
            run_events = await stream.read()
            if not run_events:
                raise Unavailable("the coordinator ended the call before the run had ended")
        except FanfoldError:
            self._is_lost = True
            raise
        for run_event in run_events:
            self._keep(run_event)
        return [event for run_event in run_events if (event := self._told(run_event)) is not None]

    def _keep(self, run_event: RunEvent) -> None:
        if isinstance(run_event, RunStepEvent):
            if isinstance(run_event.event, StepEnded):
                self._outcomes[run_event.index] = run_event.event.outcome
            if run_event.budget_spent is not None and self.budget is not None:
                self.budget = replace(self.budget, spent=run_event.budget_spent)
        elif isinstance(run_event, RunEnded):
            self._ended = run_event
            self.budget = run_event.run.budget
        elif isinstance(run_event, BudgetExhausted):
            self.budget = run_event.budget
        elif isinstance(run_event, WaitingChanged):
            self._waiting_on = run_event.waiting_on
        elif isinstance(run_event, RunStarted):
            self.run_id = run_event.run_id

    def _conclude(self) -> Result:
        """The result of the run, which has ended; raises why there is none."""
        ended = self._ended
        assert ended is not None
        match ended.run.state:
            case RunState.CANCELLED:
                raise Cancelled(f"the run was cancelled: {ended.run.reason or 'nobody says why'}")
            case RunState.FAILED if not ended.out_of_quota:
                raise InternalError(f"the run could not go on: {ended.error or ended.run.reason}", reason="RUN_FAILED")
            case _:
                return self._result_of(ended)

    @abstractmethod
    def _check(self) -> int:
        """Check what was given, before the mesh is asked; how many outcomes there will be."""

    @abstractmethod
    def _begin(self, detail: EventDetail, client: CoordinatorClient, bookmark: Bookmark) -> RunCall:
        """Begin the run, or go on with it from a bookmark."""

    @abstractmethod
    def _told(self, run_event: RunEvent) -> Event | None:
        """What is told of one of the run's events, if anything is."""

    @abstractmethod
    def _result_of(self, ended: RunEnded) -> Result:
        """The result of the run, whose every step has ended."""


def refuse_async(on_event: Callable[[Event], None] | None) -> None:
    """Raise TypeError for a coroutine function, which nobody would await."""
    if inspect.iscoroutinefunction(on_event):
        raise TypeError("on_event must be a plain function; iterate over the run with `async for` to await things")
