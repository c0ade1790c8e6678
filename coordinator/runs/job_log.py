"""The log of a detached run's job: a line for each step that has ended, and for what a script says (C37)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

from coordinator.journal.journal import JournalFailed, PayloadGone
from coordinator.runs.outage import RETRY_SECONDS
from coordinator.runs.reader import LiveReader
from fanfold.errors import FanfoldError
from fanfold.model.run import LogLine, PhaseStarted, RunEvent, RunStepEvent
from fanfold.model.step import StepEnded
from fanfold.ports import Production
from fanfold.wire.run import event_from_bytes

LOG = "log"
"""Name of the job's output."""

_CHUNK = 200
"""Events that are written before others get their turn."""


class JobLog:
    """Writes it from the run's first event on, whoever has written it before: what is kept is not kept twice."""

    def __init__(self) -> None:
        self._told = 0
        """Steps whose end is in it."""
        self._is_whole = False
        self._more = asyncio.Event()

    async def write(self, job: Production, reader: LiveReader) -> None:
        """Write a line for all that `reader` gives, until it gives nothing more."""
        while (events := await _next_of(reader)) is not None:
            for first in range(0, len(events), _CHUNK):
                told = [event_from_bytes(event) for event in events[first : first + _CHUNK]]
                lines = [line for event in told if (line := _line_of(event))]
                job.write(LOG, "".join(lines).encode())
                self._told += sum(map(_ends_step, told))
                await asyncio.sleep(0)
            self._more.set()
        self.end()

    async def until_told(self, steps: int) -> None:
        """Wait until so many steps have their line, or no more lines come."""
        while self._told < steps and not self._is_whole:
            self._more.clear()
            await self._more.wait()

    def end(self) -> None:
        """No more lines come."""
        self._is_whole = True
        self._more.set()


async def _next_of(reader: LiveReader) -> Sequence[bytes] | None:
    """The next events; none when there are no more, or when they are told elsewhere."""
    while True:
        try:
            return await reader.read() or None
        except PayloadGone:
            return None
        except JournalFailed:
            await asyncio.sleep(RETRY_SECONDS)
        except FanfoldError:
            return None


def _line_of(event: RunEvent | None) -> str:
    """The line of an event in a run's log; empty for one that is none. The same event always gives the same line."""
    match event:
        case RunStepEvent(event=StepEnded(outcome=outcome, time=time)):
            how = "ok" if outcome.failure is None else f"{outcome.failure.code}: {_one_line(outcome.failure.message)}"
            before = ", recorded before" if event.recalled else ""
            return f"{_instant(time)} {event.label or outcome.task_id}: {how}{before}\n"
        case PhaseStarted(time=time, title=title):
            return f"{_instant(time)} phase: {title}\n"
        case LogLine(time=time, message=message):
            return f"{_instant(time)} | {' '.join(message.splitlines())}\n"
        case _:
            return ""


def _ends_step(event: RunEvent | None) -> bool:
    """Whether the event is the end of a step."""
    return isinstance(event, RunStepEvent) and isinstance(event.event, StepEnded)


def _instant(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"


def _one_line(text: str) -> str:
    return text.strip().partition("\n")[0]
