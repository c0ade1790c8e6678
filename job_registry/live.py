"""A job that is not settled: what is held of it in memory, beside what the store keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from fanfold.errors import FanfoldError
from fanfold.model.job import JobState
from job_registry.bell import Bell
from job_registry.config import ProducerTimes
from job_registry.rings import Ring
from job_registry.states import LOST, orphaned
from job_registry.store.store import KeptJob, Output, OutputWrite

_MAX_ROWS = 64
"""Writes of a source after which all that is held of it is written anew, so that little writes do not pile up."""


class Producer(Protocol):
    """The stream of a job's producer. Its methods never wait."""

    @property
    def is_there(self) -> bool:
        """Whether the stream has not ended."""
        ...

    def ask_to_stop(self, reason: str) -> None:
        """Tell it that somebody asks for a stop."""
        ...

    def end(self, error: FanfoldError) -> None:
        """End the stream."""
        ...


class LiveJob:
    """A job that is not settled.

    `kept` is what is durable; `progress` and `rings` are ahead of it. `lock` is held by whoever moves the job. Readers
    that have it keep it beyond its end, which `ended` tells, so that they get all its output.
    """

    def __init__(self, kept: KeptJob, rings: Sequence[Ring], *, away_since: float) -> None:
        self.kept = kept
        self.rings = {ring.name: ring for ring in rings}
        self.progress = kept.progress
        self.lock = asyncio.Lock()
        self.moved = Bell()
        self.ended = asyncio.Event()
        self.holder: Producer | None = None
        self.away_since = away_since
        self.stop_told: float | None = None
        self._unwritten = {ring.name: _Unwritten(ring) for ring in rings}

    @property
    def number(self) -> int:
        """Its number."""
        return self.kept.number

    @property
    def producer(self) -> Producer | None:
        """The stream that holds it; None while its producer is away. `holder` is the last one that did."""
        return self.holder if self.holder is not None and self.holder.is_there else None

    @property
    def held(self) -> int:
        """Bytes of output that are held."""
        return sum(ring.held for ring in self.rings.values())

    def write(self, source: str, offset: int, data: bytes, time: datetime) -> int:
        """Add output. Gives how many bytes were dropped for it. Raises KeyError for a source that it has not."""
        dropped = self.rings[source].write(offset, data, time)
        self.moved.ring()
        return dropped

    def tell_producer_to_stop(self, now: float) -> None:
        """Tell the producer, if it is there, that a stop was asked for, if one was."""
        if self.producer is not None and self.kept.state is JobState.STOPPING:
            if self.stop_told is None:
                self.stop_told = now
            self.producer.ask_to_stop(self.kept.standing.stop_reason)

    def overdue(self, now: float, times: ProducerTimes) -> str:
        """Why it is to be given up, as its detail; empty if it is not (C38)."""
        if self.producer is None and now - self.away_since >= times.grace:
            return LOST
        if self.stop_told is not None and now - self.stop_told >= times.stop_deadline:
            return orphaned(times.stop_deadline, self.kept.holds, self.kept.producer)
        return ""

    def waiting_on(self, now: float) -> str:
        """What it waits on, in words (C42); empty when it moves."""
        words = []
        if self.producer is None:
            words = [f"which has been away for {now - self.away_since:.0f} s"]
        if self.kept.state is JobState.STOPPING:
            words.append("to stop")
        return ", ".join(["its producer", *words]) if words else ""

    def unwritten(self) -> list[OutputWrite]:
        """The output that is new since this was last asked for."""
        return [write for each in self._unwritten.values() if (write := each.take(self.number)) is not None]

    def write_anew(self) -> None:
        """Give all output as unwritten the next time, as after a write that failed."""
        for each in self._unwritten.values():
            each.afresh = True

    def last_output(self, most: int) -> list[OutputWrite]:
        """The last `most` bytes of each source, as they are kept of a settled job."""
        ends = [ring.cut_to(most) for ring in self.rings.values()]
        return [OutputWrite(number=self.number, source=end.source, pieces=end.since(0), afresh=True) for end in ends]


class _Unwritten:
    """What is new in a ring."""

    __slots__ = ("_from", "_ring", "_rows", "afresh")

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._from = ring.total
        self._rows = 0
        self.afresh = False

    def take(self, number: int) -> OutputWrite | None:
        ring = self._ring
        if self._from == ring.total and not self.afresh:
            return None
        afresh = self.afresh or self._rows >= _MAX_ROWS
        pieces = ring.since(0 if afresh else self._from)
        self._from, self.afresh = ring.total, False
        self._rows = len(pieces) + (0 if afresh else self._rows)
        return OutputWrite(number=number, source=ring.source, pieces=pieces, afresh=afresh)


def revived(kept: KeptJob, output: Output, limit: int, *, away_since: float) -> LiveJob:
    """A job of a former life, with what was kept of its output; its producer is away."""
    rings = [Ring(source, limit, output.get((kept.number, source.name), ())) for source in kept.sources]
    return LiveJob(kept, rings, away_since=away_since)
