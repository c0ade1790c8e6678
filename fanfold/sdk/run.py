"""What a run is to a Python program: to be awaited, or iterated for its events."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from fanfold.errors import Unavailable
from fanfold.model.run import EventDetail, RunEnded, RunEvent, RunStarted, RunStepEvent, WaitingChanged
from fanfold.model.step import StepEnded, StepOutcome

Event = TypeVar("Event")
Result = TypeVar("Result")


class MeshRun(ABC, Generic[Event, Result]):
    """A run to be awaited or iterated. It runs once: awaiting it again gives the result that is there."""

    def __init__(self, on_event: Callable[[Event], None] | None) -> None:
        refuse_async(on_event)
        self._on_event = on_event
        self._begun = False
        self._outcomes: list[StepOutcome | None] = []
        self._result: Result | None = None
        self.run_id = ""
        """The run's id, once it has started."""
        self.waiting_on = ""
        """What the run waits on while nothing moves, in words (C42)."""

    @property
    def result(self) -> Result:
        """The result. Raises RuntimeError before the last event."""
        if self._result is None:
            raise RuntimeError("the run has not ended; await it or iterate to its end first")
        return self._result

    @property
    def outcomes(self) -> tuple[StepOutcome | None, ...]:
        """What has come so far, in the order of what was given; None where nothing has.

        It stays readable when the run is cancelled or the mesh is lost, so that finished work is not.
        """
        return tuple(self._outcomes)

    def __await__(self) -> Generator[Any, None, Result]:
        return self._run_to_end().__await__()

    async def __aiter__(self) -> AsyncIterator[Event]:
        async with aclosing(self._events(EventDetail.PROGRESS)) as events:
            async for event in events:
                yield event

    async def _run_to_end(self) -> Result:
        if self._result is None:
            detail = EventDetail.OUTCOMES if self._on_event is None else EventDetail.PROGRESS
            async with aclosing(self._events(detail)) as events:
                async for _ in events:
                    pass
        return self.result

    async def _events(self, detail: EventDetail) -> AsyncGenerator[Event, None]:
        if self._begun:
            raise RuntimeError("the run has begun already; a second one needs a second call")
        self._outcomes = [None] * self._check()
        self._begun = True
        async with aclosing(self._run_events(detail)) as run_events:
            async for run_event in run_events:
                event = self._heard(run_event)
                if event is not None:
                    if self._on_event is not None:
                        self._on_event(event)
                    yield event
        if self._result is None:
            raise Unavailable("the coordinator ended the call before the run had ended")

    def _heard(self, run_event: RunEvent) -> Event | None:
        """Keep what an event says, and give what is told of it."""
        if isinstance(run_event, RunStepEvent):
            if isinstance(run_event.event, StepEnded):
                self._outcomes[run_event.index] = run_event.event.outcome
        elif isinstance(run_event, RunEnded):
            if run_event.error:
                raise Unavailable(f"the run could not go on: {run_event.error}")
            self._result = self._result_of(run_event)
        elif isinstance(run_event, WaitingChanged):
            self.waiting_on = run_event.waiting_on
        elif isinstance(run_event, RunStarted):
            self.run_id = run_event.run_id
        return self._told(run_event)

    @abstractmethod
    def _check(self) -> int:
        """Check what was given, before the mesh is asked; how many outcomes there will be."""

    @abstractmethod
    def _run_events(self, detail: EventDetail) -> AsyncGenerator[RunEvent, None]:
        """Begin the run; its events, until it has ended."""

    @abstractmethod
    def _told(self, run_event: RunEvent) -> Event | None:
        """What is told of one of the run's events, if anything is."""

    @abstractmethod
    def _result_of(self, ended: RunEnded) -> Result:
        """The result of the run, which has ended."""


def refuse_async(on_event: Callable[[Event], None] | None) -> None:
    """Raise TypeError for a coroutine function, which nobody would await."""
    if inspect.iscoroutinefunction(on_event):
        raise TypeError("on_event must be a plain function; iterate over the run with `async for` to await things")
