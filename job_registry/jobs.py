"""The jobs that are not settled, and how they move: each move is durable before anybody is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

import structlog

from fanfold.errors import GONE, Aborted, FailedPrecondition, NotFound, Unavailable
from fanfold.model.job import JobState
from job_registry.bell import Bell
from job_registry.changes import RecentChanges
from job_registry.config import JobRegistryConfig
from job_registry.counts import Counts
from job_registry.finishing import Finishing
from job_registry.limits import Capacity, ResultsUnderWay
from job_registry.live import LiveJob, Producer, revived
from job_registry.output import LiveOutput
from job_registry.rings import Ring
from job_registry.states import Standing, given_up, settled, stopped
from job_registry.store.store import JobStore, KeptJob, NewJob

_MAX_DIGITS = 18
"""Digits of a number; a database counts no further."""

_LOOKS = 5

_log = structlog.get_logger(__name__)


class Jobs:
    """All jobs that are not settled, and the store of all. An async context manager: it revives those of former lives.

    `now` is a clock in seconds that never jumps. `changed` rings with every change that watchers are told.
    """

    def __init__(self, store: JobStore, config: JobRegistryConfig, now: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self.config = config
        self.now = now
        self.changed = Bell()
        self.recent = RecentChanges(store, self.changed)
        self.capacity = Capacity(config.limits)
        self.results = ResultsUnderWay(config.limits)
        self.output = LiveOutput(store, config.output, self.changed)
        self.counts = Counts()
        self._live: dict[int, LiveJob] = {}
        self._doubtful: set[int] = set()
        self._finishing = Finishing()

    async def __aenter__(self) -> Self:
        now, output = self.now(), await self.store.unsettled_output()
        for kept in await self.store.unsettled():
            self._enter(revived(kept, output, self.config.output.live_bytes, away_since=now))
        if self._live:
            _log.info("jobs revived; their producers have a grace to come back", jobs=len(self._live))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._finishing.__aexit__(kind, error, trace)
        await self.output.keep()

    @property
    def all_live(self) -> Sequence[LiveJob]:
        """All jobs that are not settled, as they are now."""
        return list(self._live.values())

    async def find(self, job_id: str) -> KeptJob | None:
        """A job by its id, also a deleted one; from the store, whether it is settled or not, or not there at all.

        `live` has it, too, if it is not settled.
        """
        text = job_id.rpartition("-")[2]
        number = int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else 0
        for _ in range(_LOOKS):
            kept = await self.store.find(number)
            if kept is None or kept.state.is_settled or number in self._live:
                break
            await asyncio.sleep(0)  # it is on its way into memory or out of it
        return kept if kept is not None and kept.id == job_id else None

    def live(self, number: int) -> LiveJob | None:
        """A job that is not settled."""
        return self._live.get(number)

    async def register(self, new: NewJob) -> KeptJob:
        """Commit a job that has started, or give the one that its request has come to meanwhile."""
        return await self._finishing.finish(self._register(new))

    async def _register(self, new: NewJob) -> KeptJob:
        try:
            kept = await self.store.add(new)
        except Unavailable:
            self._doubtful.add(new.number)
            raise
        if kept.number == new.number:
            rings = [Ring(source, self.config.output.live_bytes) for source in kept.sources]
            self._enter(LiveJob(kept, rings, away_since=self.now()))
            self.counts.note_registered(kept)
            self.changed.ring()
        return kept

    async def attach(self, live: LiveJob, producer: Producer, epoch: int) -> None:
        """Have another stream hold a job.

        Raises:
            Aborted: the job has a newer epoch.
            NotFound: the job was given up meanwhile.
        """
        await self._finishing.finish(self._attach(live, producer, epoch))

    async def _attach(self, live: LiveJob, producer: Producer, epoch: int) -> None:
        async with live.lock:
            if live.kept.standing.given_up:
                raise gone(live.kept)
            if epoch < live.kept.epoch:
                raise Aborted(f"the job is held with epoch {live.kept.epoch}, not {epoch}", reason="STALE_EPOCH")
            if epoch > live.kept.epoch:
                await self.store.attach(live.number, epoch)
                live.kept = replace(live.kept, epoch=epoch)
            if not live.ended.is_set():
                self._take_over(live, producer)

    def detach(self, live: LiveJob, producer: Producer) -> None:
        """A stream that may have held a job is no more."""
        if live.holder is producer:
            live.away_since = self.now()

    async def stop(self, live: LiveJob, reason: str) -> KeptJob:
        """Ask a job to stop (C38); gives it as it then is."""
        return await self._finishing.finish(self._stop(live, reason))

    async def _stop(self, live: LiveJob, reason: str) -> KeptJob:
        async with live.lock:
            standing = stopped(live.kept.standing, reason)
            if standing is not live.kept.standing:
                live.kept = await self.store.move(live.number, standing, progress=live.progress)
                live.tell_producer_to_stop(self.now())
                live.moved.ring()
                self.changed.ring()
            return live.kept

    async def settle(
        self, live: LiveJob, producer: Producer, state: JobState, detail: str, result: bytes | None = None
    ) -> KeptJob:
        """Settle a job by its producer's word; gives it as it is kept, for the first settlement stays (C35).

        Raises:
            Aborted: another stream has come to hold the job.
        """
        return await self._finishing.finish(self._settle(live, producer, state, detail, result))

    async def _settle(
        self, live: LiveJob, producer: Producer, state: JobState, detail: str, result: bytes | None
    ) -> KeptJob:
        async with live.lock:
            if live.holder is not producer:
                raise _superseded()
            return await self._end(live, settled(live.kept.standing, state, detail), result)

    async def give_up_overdue(self) -> None:
        """Settle the jobs whose producers have not come back or not stopped in time (C38)."""
        await self._resolve_doubts()
        now, times = self.now(), self.config.producers
        overdue = [live for live in self._live.values() if live.overdue(now, times)]
        await asyncio.gather(*(self._finishing.finish(self._give_up(live)) for live in overdue))

    async def _give_up(self, live: LiveJob) -> None:
        async with live.lock:
            why = live.overdue(self.now(), self.config.producers)
            if not why:  # its producer came back while this waited
                return
            try:
                kept = await self._end(live, given_up(live.kept.standing, why), None)
            except Unavailable as error:
                _log.warning("a job cannot be given up yet", job=live.kept.id, why=error.message)
                return
            _log.warning("job given up", job=kept.id, why=why)
            if live.producer is not None:
                live.producer.end(gone(kept))

    async def _resolve_doubts(self) -> None:
        """Revive jobs whose registration failed and took effect all the same."""
        for number in list(self._doubtful):
            with suppress(Unavailable):
                kept = await self.store.find(number)
                self._doubtful.discard(number)
                if kept is not None and not kept.state.is_settled and number not in self._live:
                    self._enter(revived(kept, {}, self.config.output.live_bytes, away_since=self.now()))
                    self.counts.note_registered(kept)

    async def delete(self, kept: KeptJob) -> None:
        """Delete a settled job. Idempotent. Raises FailedPrecondition if it is not settled."""
        if not kept.state.is_settled:
            raise FailedPrecondition(f"{kept.id} is {kept.state}; cancel it first", reason="NOT_SETTLED")
        if not kept.deleted:
            await self._finishing.finish(self.store.delete(kept.number))

    async def _end(self, live: LiveJob, standing: Standing, result: bytes | None) -> KeptJob:
        """Settle a job whose lock is held, unless it is."""
        if live.ended.is_set():
            return live.kept
        output = live.last_output(self.config.output.settled_bytes)
        try:
            live.kept = await self.store.move(
                live.number, standing, progress=live.progress, output=output, result=result
            )
        except BaseException:
            self.output.write_anew([live])
            raise
        del self._live[live.number]
        self.capacity.give(counted_by(live.kept))
        self.output.leave(live)
        self.counts.note_settled(live.kept)
        live.ended.set()
        live.moved.ring()
        self.changed.ring()
        return live.kept

    def _enter(self, live: LiveJob) -> None:
        self._live[live.number] = live
        self.capacity.take(counted_by(live.kept))
        self.output.enter(live)

    def _take_over(self, live: LiveJob, producer: Producer) -> None:
        if not producer.is_there:  # it went while this was being written
            return
        before, live.holder = live.producer, producer
        live.away_since = self.now()  # should it go before it has said a word
        if before is not None and before is not producer:
            before.end(_superseded())


def gone(kept: KeptJob) -> NotFound:
    """What a producer is told whose job was given up (C38)."""
    return NotFound(f"{kept.id} was given up: {kept.standing.detail}", reason=GONE)


def _superseded() -> Aborted:
    return Aborted("another stream holds the job now", reason="SUPERSEDED")


def counted_by(kept: KeptJob) -> str:
    """The principal whose limit a job counts for."""
    return kept.owner or kept.producer
