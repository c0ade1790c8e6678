"""A journaled run's events: numbered, made durable, and only then told to whoever reads them (C16, C28)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import structlog

from coordinator.counts import JournalCounts
from coordinator.journal.journal import Append, Entry, Fenced, Journal, JournalFailed, Record
from coordinator.runs.outage import RETRY_SECONDS
from fanfold.errors import FanfoldError, Unavailable
from fanfold.model.run import EventDetail, RunState

MAX_BATCH_ENTRIES = 2_000
"""Events written at once; more wait for the next transaction."""

MAX_PENDING_BYTES = 32 * 2**20
"""Bytes that may wait to become durable before no further step is begun (F15)."""

TAIL_BYTES = 4 * 2**20
"""Bytes of durable events kept in memory for readers that keep up; others read from the journal."""

_log = structlog.get_logger(__name__)

Standing = Callable[[], Append]
"""How the run stands now: an Append without entries."""


class _Told(NamedTuple):
    """An event that is still to be written, with what becomes durable together with it, and never before it."""

    entry: Entry
    settles: str
    record: Record | None


@dataclass(frozen=True, slots=True)
class _Batch:
    """Events that became durable at once. Progress among them has number 0 and is not kept."""

    entries: Sequence[Entry]
    size: int


class RunLog:
    """Takes a run's events in order, writes them, and tells them when they are durable.

    `standing` gives what is written of the run beside them. `on_durable` is told the keys of steps whose ending became
    durable. A write that fails is tried again until `may_write` says no; then, or when the run has moved on, the log
    fails, and its readers with it (C17, F5).
    """

    def __init__(
        self,
        journal: Journal,
        run_id: str,
        *,
        last_sequence: int,
        standing: Standing,
        on_durable: Callable[[Sequence[str]], None],
        may_write: Callable[[], bool],
        counts: JournalCounts,
    ) -> None:
        self.run_id = run_id
        self.journal = journal
        self.durable = last_sequence
        """Number of the last event that is durable."""
        self.ended: FanfoldError | None = None
        """Why nothing more comes, if the run did not end here."""
        self.is_closed = False
        self.changed = asyncio.Event()
        """Set when something changed; whoever waits for it takes the next one afterwards."""
        self._standing = standing
        self._on_durable = on_durable
        self._may_write = may_write
        self._counts = counts
        self._sequence = last_sequence
        self._pending: list[_Told] = []
        self._pending_bytes = 0
        self._final: Append | None = None
        self._is_due = asyncio.Event()
        self._is_noted = False
        self._light = asyncio.Event()
        self._light.set()
        self._tail: deque[_Batch] = deque()
        self._tail_bytes = 0
        self._tail_first = 0
        self.failing_since: float | None = None
        """Since when writes fail and are tried again, on the monotonic clock."""

    # What the run tells.

    def next_number(self) -> int:
        """The number of the event that is told next."""
        self._sequence += 1
        return self._sequence

    def tell(self, entry: Entry, *, settles: str = "", record: Record | None = None) -> None:
        """Take an event with its number, or progress with 0; `settles` is the key of the step that it ends.

        What comes after the last event is not told.
        """
        if self._final is not None:
            return
        self._pending.append(_Told(entry, settles, record))
        self._pending_bytes += len(entry.data)
        if self._pending_bytes > MAX_PENDING_BYTES:
            self._light.clear()
        self._is_due.set()

    def note(self) -> None:
        """Have it written soon how the run stands, also if no event tells of it."""
        self._is_noted = True
        self._is_due.set()

    def is_heavy(self) -> bool:
        """Whether so much waits to become durable that no further step is to be begun."""
        return not self._light.is_set()

    async def room(self) -> None:
        """Wait while it is heavy."""
        await self._light.wait()

    def is_failing(self) -> bool:
        """Whether the last write failed and is being tried again."""
        return self.failing_since is not None

    async def flush(self) -> None:
        """Wait until everything told so far is durable. Raises why it will not be."""
        number = self._sequence
        while self.durable < number:
            if self.is_closed:
                raise self.ended or AssertionError("the log is closed with events in it")
            await self.changed.wait()

    async def finish(self, entry: Entry, final: Append) -> None:
        """Tell the run's last event and wait until it is durable; nothing comes after it. Raises as `flush`."""
        self.tell(entry)
        self._final = final
        await self.flush()

    def close(self, why: FanfoldError | None = None) -> None:
        """Nothing more comes; readers are told why, unless the run has ended. Idempotent."""
        if not self.is_closed:
            self.is_closed = True
            self.ended = moved() if isinstance(why, Fenced) else why
            self.wake()

    # What makes it durable.

    async def write(self) -> None:
        """Write whatever has gathered, again and again until the last event is written.

        Raises:
            Fenced: the run has moved on.
            JournalFailed: the journal cannot be written, and the run's lease is about to end.
        """
        try:
            while not self.is_closed:
                await self._is_due.wait()
                self._is_due.clear()
                while self._pending or (self._is_noted and not self.is_closed):
                    await self._write_batch()
        except FanfoldError as error:
            self.close(error)
            raise

    async def _write_batch(self) -> None:
        told, self._pending = self._pending[:MAX_BATCH_ENTRIES], self._pending[MAX_BATCH_ENTRIES:]
        entries = [each.entry for each in told]
        records = [each.record for each in told if each.record is not None]
        settled = [each.settles for each in told if each.settles]
        size = sum(len(entry.data) for entry in entries)
        kept = [entry for entry in entries if entry.sequence]
        is_last = self._final is not None and not self._pending
        if kept or self._is_noted:
            self._is_noted = False
            base = self._final if is_last and self._final is not None else self._standing()
            await self._append(replace(base, entries=kept, records=records))
        if kept:
            self.durable = kept[-1].sequence
        self._pending_bytes -= size
        if self._pending_bytes <= MAX_PENDING_BYTES:
            self._light.set()
        self._keep(_Batch(entries, size))
        if settled:
            self._on_durable(settled)
        if is_last:
            self.is_closed = True
        self.wake()

    async def _append(self, append: Append) -> None:
        while True:
            began = time.monotonic()
            try:
                await self.journal.append(append)
            except JournalFailed:
                self._counts.failures += 1
                if not self._may_write():
                    raise
                if self.failing_since is None:
                    _log.warning("the journal cannot be written; trying again", run_id=self.run_id)
                    self.failing_since = began
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self.failing_since = None
                self._counts.append_seconds.add(time.monotonic() - began)
                self._counts.append_events.add(len(append.entries))
                return

    def _keep(self, batch: _Batch) -> None:
        self._tail.append(batch)
        self._tail_bytes += batch.size
        while self._tail_bytes > TAIL_BYTES and len(self._tail) > 1:
            self._tail_bytes -= self._tail.popleft().size
            self._tail_first += 1

    def wake(self) -> None:
        """Have whoever waits look again."""
        self.changed.set()
        self.changed = asyncio.Event()

    # What readers read.

    @property
    def next_batch(self) -> int:
        """Number of the batch that comes next."""
        return self._tail_first + len(self._tail)

    def batch(self, number: int) -> Sequence[Entry] | None:
        """A batch that is still in memory."""
        at = number - self._tail_first
        return self._tail[at].entries if 0 <= at < len(self._tail) else None

    def batch_of(self, sequence: int) -> int | None:
        """Number of the batch that has the event, or that will have it; None if it is not in memory."""
        if sequence > self.durable:
            return self.next_batch
        for at in range(len(self._tail) - 1, -1, -1):
            first = next((entry.sequence for entry in self._tail[at].entries if entry.sequence), None)
            if first is not None and first <= sequence:
                return self._tail_first + at
        return None


def moved() -> Unavailable:
    """What readers are told of a run that somebody else holds: they are to ask again, and get it from there."""
    return Unavailable("the run has moved to another coordinator", reason="RUN_MOVED", retry_delay=0.5)


def ends_run(state: RunState) -> bool:
    """Whether nothing follows this state."""
    return state in {RunState.COMPLETED, RunState.CANCELLED, RunState.FAILED}


def is_told(entry: Entry, detail: EventDetail) -> bool:
    """Whether a reader who asked for `detail` is told the event."""
    if not entry.sequence:
        return detail is EventDetail.PROGRESS
    return entry.outcomes_only or detail is not EventDetail.OUTCOMES
