"""How jobs move: each move is durable before anybody is told, here or at another registry on the same store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Self

import structlog

from fanfold.errors import Aborted, FailedPrecondition, Unavailable
from fanfold.model.job import JobState
from fanfold.tracing import NO_TRACER, Tracer
from job_registry.bell import Bell
from job_registry.changes import RecentChanges
from job_registry.config import JobRegistryConfig
from job_registry.counts import Counts
from job_registry.finishing import Finishing
from job_registry.held import Held, Producer
from job_registry.known import KnownJobs
from job_registry.limits import Capacity, ResultsUnderWay
from job_registry.live import LiveJob
from job_registry.output import LiveOutput
from job_registry.presence import Presence
from job_registry.refusals import gone, overtaken, superseded
from job_registry.states import Move, given_up, settled, stopped
from job_registry.store.store import JobStore, KeptJob, KeptOutput, Moved, NewJob
from job_registry.tracing import trace_given_up

_MAX_DIGITS = 18
"""Digits of a number; a database counts no further."""

_LEFT_AT_ONCE = 500
"""So that nothing else waits long behind it."""

_log = structlog.get_logger(__name__)


class Jobs:
    """The jobs of a store. An async context manager: entering it finds all that are not settled.

    `now` is a clock in seconds that never jumps. `changed` rings with every change that watchers are told. It hears of
    what other registries do as the store's Listener.
    """

    def __init__(
        self,
        store: JobStore,
        config: JobRegistryConfig,
        now: Callable[[], float] = time.monotonic,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self.store = store
        self.tracer = tracer
        self.config = config
        self.now = now
        self.changed = Bell()
        self.capacity = Capacity(config.limits)
        self.results = ResultsUnderWay(config.limits)
        self.output = LiveOutput(store, config.output, self.changed)
        self.counts = Counts()
        self._presence = Presence(store, config.store.lease, now)
        self._known = KnownJobs(store, self._presence, self.output, self.capacity, now)
        self.recent = RecentChanges(store, self.changed, follower=self._known)
        self._left: dict[int, int] = {}
        self._finishing = Finishing()

    async def __aenter__(self) -> Self:
        await self._presence.renew()
        await self.recent.begin()
        if self.all_live:
            _log.info("jobs found; their producers have a grace to come back", jobs=len(self.all_live))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._finishing.__aexit__(kind, error, trace)
        await self.output.keep()
        with suppress(Unavailable):
            await self.tell_left()

    @property
    def all_live(self) -> Sequence[LiveJob]:
        """All jobs that are not settled, as they are now."""
        return self._known.all_live

    def live(self, number: int) -> LiveJob | None:
        """A job that is not settled."""
        return self._known.live(number)

    async def find(self, job_id: str) -> KeptJob | None:
        """A job by its id, also a deleted one; from the store, whether it is settled or not, or not there at all.

        `live` has it, too, if it is not settled.
        """
        text = job_id.rpartition("-")[2]
        number = int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else 0
        kept = await self._find(number)
        if kept is not None and not kept.state.is_settled and self.live(number) is None:
            kept = await self._find(number)  # it has settled since it was read
        return kept if kept is not None and kept.id == job_id else None

    async def _find(self, number: int) -> KeptJob | None:
        kept = await self.store.find(number)
        if kept is not None:
            self._known.see(kept)
        return kept

    async def register(self, new: NewJob, producer: Producer) -> KeptJob:
        """Commit a job that has started, held by its stream, or give the one that its request has come to meanwhile."""
        return await self._finishing.finish(self._register(new, producer))

    async def _register(self, new: NewJob, producer: Producer) -> KeptJob:
        try:
            kept = await self.store.add(replace(new, holder=self._presence.name), self._known.room(new.counted_by))
        finally:
            self.changed.ring()  # it may have taken effect also where it failed, and is found among the changes then
        self._known.see(kept)
        live = self.live(kept.number)
        if kept.number == new.number and live is not None and live.kept.hold == kept.hold:
            self.counts.note_registered(kept)
            self._take_over(live, kept, producer, [KeptOutput(source=each, pieces=()) for each in kept.sources])
        return kept

    async def attach(self, live: LiveJob, producer: Producer, epoch: int) -> None:
        """Have another stream hold a job.

        Raises:
            Aborted: the job has a newer epoch.
            NotFound: the job was given up meanwhile.
            Unavailable: another stream has come to hold it at the same time, elsewhere.
        """
        await self._finishing.finish(self._attach(live, producer, epoch))

    async def _attach(self, live: LiveJob, producer: Producer, epoch: int) -> None:
        async with live.lock:
            if not producer.is_there:  # it has gone while this waited, maybe to another registry
                raise superseded()
            if not live.ended.is_set():
                try:
                    hold = live.kept.hold
                    kept = await self.store.attach(live.number, epoch, self._presence.name, hold)
                    self._known.see(kept)
                    has_it = (kept.holder, kept.hold, kept.epoch) == (self._presence.name, hold + 1, epoch)
                    if not kept.state.is_settled and not has_it:
                        raise overtaken()
                    output = await self.store.output(live.number) if live.held is None else ()
                except Unavailable as error:  # which stream holds it now, nobody knows
                    self._known.drop(live, error)
                    raise
            if live.kept.standing.given_up:
                raise gone(live.kept.id, live.kept.standing.detail)
            if not live.ended.is_set():
                self._take_over(live, kept, producer, output)

    def _take_over(self, live: LiveJob, kept: KeptJob, producer: Producer, output: Sequence[KeptOutput]) -> None:
        """Hold a job here, as the store has it; go on with what is held of it already."""
        if live.kept.hold != kept.hold:
            raise superseded()
        if live.held is None:
            live.held = Held(kept, producer, output, self.config.output.live_bytes)
            self.output.enter(live.held)
        live.held.hold = kept.hold
        if producer.is_there:  # it may have gone while this was being written
            before, live.held.producer = live.held.producer, producer
            if before is not producer:
                before.end(superseded())
        if live.producer is None:
            self._left[live.number] = kept.hold
        self._known.look_for_producer(live)

    def detach(self, live: LiveJob, producer: Producer) -> None:
        """A stream that may have held a job is no more."""
        if live.held is not None and live.is_held_by(producer) and not live.ended.is_set():
            self._left[live.number] = live.held.hold
            self._known.look_for_producer(live)

    async def tell_left(self) -> None:
        """Have other registries know which producers have gone from here. Raises StoreFailed."""
        while self._left:
            some = dict(islice(self._left.items(), _LEFT_AT_ONCE))
            await self.store.leave(some)
            for number, hold in some.items():
                if self._left.get(number) == hold:
                    del self._left[number]
            self.changed.ring()

    async def stop(self, live: LiveJob, reason: str) -> KeptJob:
        """Ask a job to stop (C38); gives it as it then is."""
        return await self._finishing.finish(self._stop(live, reason))

    async def _stop(self, live: LiveJob, reason: str) -> KeptJob:
        async with live.lock:
            move = partial(stopped, reason=reason)
            if move(live.kept.standing) is not live.kept.standing:
                self._known.see((await self.store.move(live.number, move)).job)
                self.changed.ring()
            return live.kept

    async def settle(
        self, live: LiveJob, producer: Producer, state: JobState, detail: str, result: bytes | None = None
    ) -> KeptJob:
        """Settle a job by its producer's word; gives it as it is kept, for the first settlement stays (C35).

        Raises:
            Aborted: another stream has come to hold the job.
        """
        move = partial(settled, state=state, detail=detail)
        return await self._finishing.finish(self._settle(live, producer, move, result))

    async def _settle(self, live: LiveJob, producer: Producer, move: Move, result: bytes | None) -> KeptJob:
        async with live.lock:
            if live.held is None or not live.is_held_by(producer):
                raise superseded()
            return (await self._end(live, move, live.held.hold, result)).job

    async def give_up_overdue(self) -> None:
        """Settle the jobs whose producers have not come back or not stopped in time (C38).

        None as long as this registry was away itself, or its store: who could not come meanwhile has the grace anew.
        """
        if self._presence.was_away:
            return
        now, times = self.now(), self.config.producers
        overdue = [live for live in self.all_live if live.overdue(now, times)]
        await asyncio.gather(*(self._finishing.finish(self._give_up(live)) for live in overdue))

    async def _give_up(self, live: LiveJob) -> None:
        async with live.lock:
            why = live.overdue(self.now(), self.config.producers)
            if not why:  # its producer came back while this waited
                return
            try:
                moved = await self._end(live, partial(given_up, detail=why), live.kept.hold, None)
            except (Unavailable, Aborted) as error:
                _log.warning("a job cannot be given up yet", job=live.kept.id, why=error.message)
                return
            if moved.is_new:
                _log.warning("job given up", job=live.kept.id, why=why)
                trace_given_up(self.tracer, moved.job)

    async def _end(self, live: LiveJob, move: Move, hold: int, result: bytes | None) -> Moved:
        """Settle a job whose lock is held, unless it is."""
        if live.ended.is_set():
            return Moved(live.kept, is_new=False)
        held = live.held
        try:
            moved = await self.store.move(
                live.number,
                move,
                hold=hold,
                progress=held.progress if held is not None else None,
                output=held.unwritten() if held is not None else (),
                result=result,
                settled_bytes=self.config.output.settled_bytes,
            )
        except BaseException:
            self.output.write_again(live)
            raise
        self._known.see(moved.job)
        if moved.is_new:  # another registry may have given it up at the same moment
            self.counts.note_settled(moved.job)
        self.changed.ring()
        return moved

    async def delete(self, kept: KeptJob) -> None:
        """Delete a settled job. Idempotent. Raises FailedPrecondition if it is not settled."""
        if not kept.state.is_settled:
            raise FailedPrecondition(f"{kept.id} is {kept.state}; cancel it first", reason="NOT_SETTLED")
        if not kept.deleted:
            await self._finishing.finish(self.store.delete(kept.number))

    # Among other registries.

    async def renew(self) -> None:
        """Have others know that this registry is there, and know which of them are. Raises StoreFailed.

        One that is cut off from the store sends its producers away, so that they come to others while there is time.
        """
        try:
            was_missed = await self._presence.renew()
        except Unavailable as error:
            if self._presence.is_cut_off:
                for live in self.all_live:
                    self._known.drop(live, error)
            raise
        self._known.look_for_producers(anew=was_missed)

    def on_changes(self) -> None:
        """Others have changed something (Listener)."""
        self.changed.ring()

    def on_output(self, numbers: Collection[int]) -> None:
        """Others have written output of these jobs (Listener)."""
        self._known.ring(numbers)

    def on_anything(self) -> None:
        """Others may have done anything (Listener)."""
        self.changed.ring()
        self._known.ring()
