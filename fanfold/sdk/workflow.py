"""A workflow script's run, as the program that asked for it holds it (C26 to C28)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from fanfold.clients.coordinator import Bookmark, CoordinatorClient, Terms
from fanfold.clients.run_call import RunCall
from fanfold.errors import DeadlineExceeded, FanfoldError, FieldViolation, InvalidArgument, Unavailable
from fanfold.model.run import (
    Budget,
    BudgetExhausted,
    EventDetail,
    LogLine,
    PhaseStarted,
    RunEnded,
    RunEvent,
    RunStarted,
    RunStepEvent,
    WaitingChanged,
)
from fanfold.model.script import Script, ScriptEvent, ScriptEventKind, ScriptMeta, ScriptResult, StopReason
from fanfold.model.script_checks import parse_meta
from fanfold.model.step import StepEnded, StepStarted
from fanfold.model.validation import json_text
from fanfold.sdk.runs import DISPOSE_SECONDS
from fanfold.sdk.servers import Servers
from fanfold.sdk.streams import CANCELLED_BY_CALLER, RunStream

_META = frozenset({"name", "description", "when_to_use", "phases"})


class WorkflowRun:
    """A script's run, while its block lasts: `async with mesh.workflow(...) as run: result = await run.result()`.

    It begins as the block is entered, and at the block's end it is disposed of. Any number of observers can read its
    events, from the first one on; how fast they are is nobody else's matter.
    """

    def __init__(self, servers: Servers, script: Script, terms: Terms, *, reconnect_timeout: float = 0.0) -> None:
        self._script = script
        begin = partial(_begin, script, terms)
        self._stream = RunStream(servers, begin, EventDetail.LIFECYCLE, reconnect_timeout=reconnect_timeout)
        self._heard: list[ScriptEvent] = []
        self._news = asyncio.Condition()
        self._reading: asyncio.Task[None] | None = None
        self._error: FanfoldError | None = None
        self._result: ScriptResult | None = None
        self._is_over = False
        self._running = 0
        self.id = ""
        """The run's id, once it has begun."""
        self.waiting_on = ""
        """What it waits on while nothing moves, in words (C42)."""
        self.budget = None if terms.budget_tokens is None else Budget(limit=terms.budget_tokens)
        """Its budget as it was last told, if it has one (C13)."""

    @property
    def meta(self) -> ScriptMeta:
        """What the script says of itself."""
        return self._script.meta

    @property
    def has_ended(self) -> bool:
        """Whether its result is there."""
        return self._result is not None

    async def __aenter__(self) -> Self:
        """Begin it.

        Raises:
            InvalidArgument: names everything that is wrong with the request, with line and column of a syntax error.
            Unavailable: the mesh cannot be reached.
        """
        self._reading = asyncio.create_task(self._read())
        try:
            await self._until(lambda: bool(self.id))
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(*((FanfoldError,) if error is not None else ())):
            await self.dispose()

    async def result(self) -> ScriptResult:
        """What came of it, as soon as it is decided: also an error in the script is a result (C26).

        Raises:
            Unavailable: the mesh was lost.
        """
        await self._until(lambda: self.has_ended)
        assert self._result is not None
        return self._result

    async def events(self, *, from_sequence: int = 0) -> AsyncGenerator[ScriptEvent, None]:
        """Its events from a number on, to the last; those that were told before too."""
        at = 0
        while await self._has_told(at):
            event = self._heard[at]
            at += 1
            if event.sequence >= from_sequence:
                yield event
            if event.kind is ScriptEventKind.END:
                return

    async def cancel(self, reason: str = "") -> None:
        """Have it stopped; returns at once. The first reason is kept."""
        if not self.has_ended and self.id:
            await self._stream.stop(reason or CANCELLED_BY_CALLER)

    async def dispose(self, *, timeout: float = DISPOSE_SECONDS) -> None:
        """Cancel it if it goes on, and return when its process and its agents are gone. Idempotent (C27).

        Raises:
            DeadlineExceeded: that took longer than `timeout` seconds; says what is still there.
        """
        try:
            async with asyncio.timeout(timeout):
                if not self._is_over:
                    with suppress(Unavailable):  # then it has ended, as it ends with its call
                        await self.cancel("it was disposed of")
                    await self._until_over()
        except TimeoutError:
            left = f"{self._running} agents" if self._running != 1 else "1 agent"
            late = f"not gone within {timeout:g} s: {left} of {self.id}"
            raise DeadlineExceeded(late, reason="NOT_DISPOSED") from None
        finally:
            await self._close()

    # What the mesh tells.

    async def _read(self) -> None:
        try:
            while events := await self._stream.read():
                for event in events:
                    self._take(event)
                await self._wake()
            if not self.has_ended:
                self._error = Unavailable("the coordinator ended the call before the script had ended")
        except FanfoldError as error:
            self._error = _in_callers_words(error)
        finally:
            self._is_over = True
            await self._wake()

    def _take(self, event: RunEvent) -> None:
        match event:
            case RunStarted():
                self.id = event.run_id
            case WaitingChanged():
                self.waiting_on = event.waiting_on
            case BudgetExhausted():
                self.budget = event.budget
            case RunStepEvent():
                self._running += isinstance(event.event, StepStarted) - isinstance(event.event, StepEnded)
                if event.budget_spent is not None and self.budget is not None:
                    self.budget = Budget(limit=self.budget.limit, spent=event.budget_spent)
            case RunEnded():
                self._result = event.script_result or ScriptResult(stop_reason=StopReason.ERROR, error=event.error)
                self.budget, self.waiting_on = event.run.budget, ""
        told = self._as_told(event)
        if told is not None:
            self._heard.append(told)

    def _as_told(self, event: RunEvent) -> ScriptEvent | None:
        """The event as observers are told it; None for what is of none of the six kinds (C28)."""
        kinds = ScriptEventKind

        def told(kind: ScriptEventKind, **fields: object) -> ScriptEvent:
            common = {"run_id": self.id, "meta": self.meta, "sequence": event.sequence, "time": event.time}
            return ScriptEvent(kind=kind, **common, **fields)  # type: ignore[arg-type]

        match event:
            case RunStarted():
                return told(kinds.START)
            case PhaseStarted():
                return told(kinds.PHASE, phase=event.title)
            case LogLine():
                return told(kinds.LOG, message=event.message)
            case RunStepEvent(event=StepStarted()):
                return told(kinds.AGENT_START, call=event.index, label=event.label, phase=event.phase)
            case RunStepEvent(event=StepEnded(outcome=outcome)):
                return told(kinds.AGENT_END, call=event.index, label=event.label, phase=event.phase, outcome=outcome)
            case RunEnded():
                assert self._result is not None
                return told(kinds.END, result=_without_value(self._result))
            case _:
                return None

    async def _wake(self) -> None:
        async with self._news:
            self._news.notify_all()

    # Waiting for it.

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds. Raises why it never will."""
        async with self._news:
            await self._news.wait_for(lambda: holds() or self._is_over)
        if not holds():
            raise self._error or Unavailable("the run's block has ended")

    async def _until_over(self) -> None:
        async with self._news:
            await self._news.wait_for(lambda: self._is_over)

    async def _has_told(self, at: int) -> bool:
        """Wait for the event at a position; whether there will be one. Raises why it was lost."""
        async with self._news:
            await self._news.wait_for(lambda: len(self._heard) > at or self._is_over)
        if at == len(self._heard) and self._error is not None:
            raise self._error
        return at < len(self._heard)

    async def _close(self) -> None:
        await self._stream.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])


def checked_meta(meta: ScriptMeta | Mapping[str, Any], args: Any) -> ScriptMeta:
    """What a script says of itself. Raises InvalidArgument for all of it, and of `args`, that cannot be sent."""
    wrong: list[FieldViolation] = []
    try:
        json_text(args, path="args")
    except InvalidArgument as error:
        wrong += error.violations
    try:
        parsed = parse_meta(meta)
    except InvalidArgument as error:
        raise InvalidArgument(violations=[*error.violations, *wrong]) from None
    if wrong:
        raise InvalidArgument(violations=wrong)
    return parsed


def _begin(script: Script, terms: Terms, client: CoordinatorClient, bookmark: Bookmark) -> RunCall:
    return client.script(script, terms, detail=EventDetail.LIFECYCLE, bookmark=bookmark)


def _without_value(result: ScriptResult) -> ScriptResult:
    return ScriptResult(
        stop_reason=result.stop_reason,
        error=result.error,
        agents_started=result.agents_started,
        failures=result.failures,
    )


@contextmanager
def renamed() -> Iterator[None]:
    """What is refused is named by the parameters of `Mesh.workflow`."""
    try:
        yield
    except FanfoldError as error:
        raise _in_callers_words(error) from None


def _in_callers_words(error: FanfoldError) -> FanfoldError:
    """The error with the names of `Mesh.workflow`'s parameters instead of the message's fields."""
    if not isinstance(error, InvalidArgument) or not error.violations:
        return error
    renamed = [FieldViolation(_parameter_of(each.field), each.description) for each in error.violations]
    return InvalidArgument(violations=renamed, reason=error.reason)


def _parameter_of(field: str) -> str:
    name = field.removeprefix("open.").removeprefix("script.")
    if name.partition(".")[0].partition("[")[0] in _META:
        return f"meta.{name}"
    return {"source": "script", "args_json": "args"}.get(name, name)
