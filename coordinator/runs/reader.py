"""Readers of a journaled run's events, each at its own pace: none slows the run or another reader (C28, F22)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from coordinator.journal.journal import Entry, Journal, JournalFailed, KeptRun, PayloadGone
from coordinator.runs.log import RunLog, ends_run, is_told
from coordinator.runs.outage import RETRY_SECONDS
from fanfold.errors import FanfoldError, OutOfRange
from fanfold.model.run import EventDetail


class LiveReader:
    """Reads a run that is held here: from memory while it keeps up, else from the journal."""

    def __init__(self, log: RunLog, first: int, detail: EventDetail) -> None:
        self._log = log
        self._next = max(1, first)
        self._detail = detail
        self._batch: int | None = None
        self._ended_by: FanfoldError | None = None

    def end(self, why: FanfoldError) -> None:
        """Have the reader be told this instead of what comes next."""
        self._ended_by = why
        self._log.wake()

    async def read(self) -> Sequence[bytes]:
        """The next encoded events, waiting for at least one; none at the end.

        Raises:
            FanfoldError: why nothing more comes, though the run has not ended.
            OutOfRange: an event is not kept any more.
        """
        while True:
            if self._ended_by is not None:
                raise self._ended_by
            told = await self._read_once()
            if told is not None:
                return told

    async def _read_once(self) -> Sequence[bytes] | None:
        """The next events, or none at the end; None to look again."""
        log = self._log
        if self._batch is None:
            self._batch = log.batch_of(self._next)
            if self._batch is None:
                return await self._read_kept()
        entries = log.batch(self._batch)
        if entries is not None:
            self._batch += 1
            return self._told([entry for entry in entries if not entry.sequence or entry.sequence >= self._next])
        if self._batch < log.next_batch:
            self._batch = None  # it fell behind
        elif log.is_closed:
            if log.ended is not None:
                raise log.ended
            return []
        else:
            await log.changed.wait()
        return None

    async def _read_kept(self) -> Sequence[bytes] | None:
        """Events that are not in memory any more, or None while the journal is away, which a run outlasts."""
        log = self._log
        try:
            return self._told(await page_of(log.journal, log.run_id, self._next))
        except JournalFailed as error:
            if log.is_closed or isinstance(error, PayloadGone):
                raise
        await asyncio.sleep(RETRY_SECONDS)
        return None

    def _told(self, entries: Sequence[Entry]) -> Sequence[bytes] | None:
        for entry in entries:
            self._next = max(self._next, entry.sequence + 1)
        return [entry.data for entry in entries if is_told(entry, self._detail)] or None


class KeptReader:
    """Reads a run that has ended.

    Raises OutOfRange if `first` is beyond what follows its last event.
    """

    def __init__(self, journal: Journal, kept: KeptRun, first: int, detail: EventDetail) -> None:
        assert ends_run(kept.run.state)
        if first > kept.last_sequence + 1:
            raise OutOfRange(f"there is no event {first}; the last is {kept.last_sequence}, for the run has ended")
        self._journal = journal
        self._run_id = kept.run.run_id
        self._last = kept.last_sequence
        self._next = max(1, first)
        self._detail = detail

    async def read(self) -> Sequence[bytes]:
        """The next encoded events; none at the end. Raises OutOfRange for one that is not kept any more."""
        while self._next <= self._last:
            page = await page_of(self._journal, self._run_id, self._next)
            self._next = page[-1].sequence + 1
            told = [entry.data for entry in page if is_told(entry, self._detail)]
            if told:
                return told
        return []


async def page_of(journal: Journal, run_id: str, first: int) -> Sequence[Entry]:
    """Kept events from number `first` on. Raises OutOfRange if it is not kept."""
    page = await journal.entries(run_id, first)
    if not page or page[0].sequence != first:
        held = f"the first that is kept is {page[0].sequence}" if page else "none is kept from there on"
        raise OutOfRange(f"event {first} is not kept any more; {held}")
    return page
