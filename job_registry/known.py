"""The jobs that are not settled, as a registry knows them, also those whose producers are at others on its store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from fanfold.errors import FanfoldError
from job_registry.limits import Capacity, Room
from job_registry.live import LiveJob
from job_registry.output import LiveOutput
from job_registry.presence import Presence
from job_registry.refusals import gone, superseded
from job_registry.store.store import Changes, JobStore, KeptJob


class KnownJobs:
    """Takes in whatever is read of jobs and written to them, here or elsewhere, in the order of their changes.

    What is told late is recognised as old by the number of its change. A job that has settled is remembered until all
    changes up to its last one were seen, so that nothing older brings it back.
    """

    def __init__(
        self, store: JobStore, presence: Presence, output: LiveOutput, capacity: Capacity, now: Callable[[], float]
    ) -> None:
        self._store = store
        self._presence = presence
        self._output = output
        self._capacity = capacity
        self._now = now
        self._jobs: dict[int, LiveJob] = {}
        self._ended: list[LiveJob] = []
        self._position = -1
        self._counted = -1

    @property
    def all_live(self) -> Sequence[LiveJob]:
        """All jobs that are not settled, as they are now."""
        return [live for live in self._jobs.values() if not live.ended.is_set()]

    def room(self, principal: str) -> Room:
        """What there is for one more job of a principal, as far as is known here."""
        return self._capacity.room(principal, self._counted)

    def live(self, number: int) -> LiveJob | None:
        """A job that is not settled."""
        live = self._jobs.get(number)
        return None if live is None or live.ended.is_set() else live

    async def begin(self, position: int) -> None:
        """Take in all jobs, as they are after the change at `position` or later. Raises StoreFailed."""
        self._position = position
        found = {kept.number: kept for kept in await self._store.unsettled()}
        for live in self.all_live:
            if live.number not in found:
                self._find_ended(live, await self._store.find(live.number))
        for kept in found.values():
            if kept.number in self._jobs:
                self.see(kept)
            else:
                self._enter(kept)
        self._counted = position  # not before: until now there may be live jobs that were not read

    def see_changes(self, changes: Changes) -> None:
        """Take in all changes that follow those seen before."""
        for kept in changes.jobs:
            self.see(kept)
        self._position = self._counted = changes.position
        for live in self._ended:
            if live.kept.change <= changes.position:
                del self._jobs[live.number]
        self._ended = [live for live in self._ended if live.kept.change > changes.position]

    def see(self, kept: KeptJob) -> None:
        """Take in a job as it was read or written."""
        live = self._jobs.get(kept.number)
        if live is None:
            if kept.change > self._position and not kept.state.is_settled:
                self._presence.meet(kept.holder)
                self._enter(kept)
        elif kept.change > live.kept.change and not live.ended.is_set():
            if kept.hold > live.kept.hold:
                self._presence.meet(kept.holder)
            live.kept = kept
            if kept.state.is_settled:
                self._end(live)
            else:
                self._follow(live)

    def look_for_producer(self, live: LiveJob) -> None:
        """Note since when its producer has been away, if it is."""
        if live.producer is not None or self._presence.is_other(live.kept.holder):
            live.away_since = None
        elif live.away_since is None:
            live.away_since = self._now()

    def look_for_producers(self, *, anew: bool) -> None:
        """Note which producers are away since when; `anew`: from now on, as nobody could come while this was away."""
        for live in self.all_live:
            if anew:
                live.away_since = None
            self.look_for_producer(live)

    def drop(self, live: LiveJob, error: FanfoldError) -> None:
        """Hold a job no longer here; ends its stream with `error`."""
        if (held := live.held) is not None:
            self._output.leave(live)
            live.held = None
            held.producer.end(error)
            self.look_for_producer(live)

    def ring(self, numbers: Collection[int] | None = None) -> None:
        """Wake those who read the output of jobs that are held elsewhere; of all of them if None."""
        found = self._jobs.values() if numbers is None else filter(None, map(self._jobs.get, numbers))
        for live in list(found):
            if live.held is None:
                live.moved.ring()

    def _enter(self, kept: KeptJob) -> None:
        live = self._jobs[kept.number] = LiveJob(kept, away_since=None)
        self._capacity.take(kept.counted_by)
        self.look_for_producer(live)

    def _follow(self, live: LiveJob) -> None:
        """After a change of a job that is not settled."""
        if live.held is not None and not self._is_still_held(live, live.held.hold):
            self.drop(live, superseded())
        self.look_for_producer(live)
        live.tell_producer_to_stop(self._now())
        live.moved.ring()

    def _is_still_held(self, live: LiveJob, hold: int) -> bool:
        """Whether no stream has come elsewhere; one that is just coming here goes on with what the last one left."""
        kept = live.kept
        return kept.hold == hold or (kept.hold == hold + 1 and kept.holder == self._presence.name)

    def _end(self, live: LiveJob) -> None:
        live.ended.set()
        self._ended.append(live)
        self._capacity.give(live.kept.counted_by)
        if (held := live.held) is not None:
            self._output.leave(live)
            is_elsewhere = not self._is_still_held(live, held.hold)
            if is_elsewhere:
                live.held = None  # the store has what came there
            if live.kept.standing.given_up:
                held.producer.end(gone(live.kept.id, live.kept.standing.detail))
            elif is_elsewhere:
                held.producer.end(superseded())
        live.moved.ring()

    def _find_ended(self, live: LiveJob, kept: KeptJob | None) -> None:
        """A job that is not among the unsettled ones; None if it was forgotten since."""
        if kept is not None:
            self.see(kept)
        elif not live.ended.is_set():
            self._end(live)
