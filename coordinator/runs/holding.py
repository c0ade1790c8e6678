"""The journaled runs that this coordinator holds: their leases, and those of others that it takes over (C18, C19)."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

import structlog

from coordinator.counts import Counts
from coordinator.journal.journal import (
    Claim,
    Fenced,
    Held,
    Holder,
    Journal,
    JournalFailed,
    KeptRun,
    NameTaken,
    NewRun,
    PayloadGone,
    Retention,
)
from coordinator.runs.detached import Jobs
from coordinator.runs.failing import Failing
from coordinator.runs.journaled import JournaledRun
from coordinator.runs.leases import Leases, Times
from coordinator.runs.looking import Looking
from coordinator.runs.name import take_name
from coordinator.runs.others import Others
from coordinator.runs.work import KINDS, CannotGoOn
from fanfold.background import background
from fanfold.errors import DRAINING, FanfoldError, Unavailable

_log = structlog.get_logger(__name__)

LEFT_SECONDS = 30.0
"""How long a run that cannot be gone on with here now is left to others: what it needs may be there again then."""

Resume = Callable[[KeptRun], Awaitable[JournaledRun]]
"""Makes a run that was claimed ready to go on."""


class Holding:
    """Renews the leases of the runs that are held here, and claims those that nobody holds any more.

    `address` is where other coordinators reach this one, `jobs` where detached runs are registered; `counts` counts
    what becomes of runs, and `others` are those that are not to be claimed. An async context manager; leaving it lets
    every run go.
    """

    def __init__(
        self,
        journal: Journal,
        name: str,
        times: Times,
        retention: Retention,
        jobs: Jobs | None = None,
        counts: Counts | None = None,
    ) -> None:
        self.journal = journal
        self.times = times
        self.address = ""
        self._name = name
        self._life = uuid.uuid4().hex
        self._retention = retention
        self.counts = counts or Counts()
        self._failing = Failing(journal, jobs, self.counts)
        self._runs: dict[str, JournaledRun] = {}
        self._leases = Leases(times)
        self._looking = Looking(journal, claim=times.claim, lease=times.lease)
        self._beginning: set[str] = set()
        self.others = Others()
        self._free_at = -math.inf
        """Until when runs are left to those who held them when the journal was last away."""
        self._tasks = asyncio.TaskGroup()
        self._leaving: FanfoldError | None = None
        self._has_dropped_name = False

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.hand_over()
        finally:
            await self._tasks.__aexit__(None, None, None)

    @property
    def holder(self) -> Holder:
        """The coordinator itself."""
        return Holder(name=self._name, address=self.address, life=self._life)

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[JournaledRun]:
        return iter(self._runs.values())

    def get(self, run_id: str) -> JournaledRun | None:
        """A run that is held here."""
        return self._runs.get(run_id)

    def may_write(self, run_id: str) -> bool:
        """Whether the run's lease is certainly not over (F5)."""
        return self._leases.is_certain(run_id)

    async def begin(self, address: str) -> None:
        """Have the coordinator's name, at this address, and accept runs from now on. Raises as `take_name`."""
        await take_name(self.journal, Holder(name=self._name, address=address, life=self._life), self.times)
        self.address = address

    async def accept(self, new: NewRun) -> KeptRun:
        """Have the journal keep a new run, held here, or find the one that the request id names (Journal.accept).

        What is new is then started, before its caller awaits anything else.
        """
        if self._leaving is not None:
            raise self._leaving
        if not self.address:  # nobody could pass a call on to here
            raise Unavailable("the coordinator is about to start", reason="STARTING", retry_delay=0.5)
        run_id, asked_at = new.run.run_id, time.monotonic()
        self._beginning.add(run_id)
        try:
            kept = await self.journal.accept(new, self.holder, self.times.lease)
        finally:
            self._beginning.discard(run_id)
        if kept.run.run_id == run_id:
            self._leases.begin(run_id, asked_at)
            self.counts.journal.note_change("accepted")
        return kept

    def start(self, run: JournaledRun) -> None:
        """Carry out a run that is held here. It can be found here until it has ended or was moved."""
        if self._leaving is not None:
            run.move(self._leaving)
        self._runs[run.scope.run_id] = run
        self.counts.runs.follow(run.scope.budget)
        self._tasks.create_task(self._carry_out(run))

    async def keep(self, resume: Resume) -> None:
        """Renew leases, claim runs, and sweep what is old, until cancelled.

        Raises NameTaken when another coordinator has the name of this one, whose runs are left to it then.
        """
        listening = self.journal.listen(self._looking)
        async with background(listening, self._claim_for_ever(resume), self._sweep_for_ever(), self._watch_leases()):
            await self._renew_for_ever()

    async def hand_over(self) -> None:
        """Let every run go, so that others go on with them at once (C43). Nothing is begun here any more."""
        self._leaving = Unavailable("the coordinator is about to stop", reason=DRAINING, retry_delay=0.5)
        moved = Unavailable("the run moves to another coordinator", reason="RUN_MOVED", retry_delay=0.5)
        for run in self:
            run.move(moved)
        for run in list(self):
            await run.until_gone()
        self._has_dropped_name = True
        with suppress(JournalFailed):
            await self.journal.drop_name(self.holder)

    async def _resume(self, kept: KeptRun, asked_at: float, resume: Resume) -> None:
        run_id = kept.run.run_id
        try:
            if (former := self.get(run_id)) is not None:  # it was lost to this very coordinator
                former.move(Fenced())
                await former.until_gone()
            self._leases.begin(run_id, asked_at)
            self.start(await resume(kept))
            self.counts.journal.note_change("taken_over")
        except CannotGoOn as error:
            self.counts.journal.note_change("left")
            self.others.leave(run_id, error.message)
            await self._let_go(kept.run.run_id, kept.epoch)
        except PayloadGone as error:  # nobody can go on with it; whoever asks for it again has it begun anew
            await self._failing.fail(kept, kept.run, kept.last_sequence, error.message)
        except JournalFailed:
            await self._let_go(kept.run.run_id, kept.epoch)
        except Exception:
            _log.exception("run cannot be gone on with", run_id=run_id)
            await self._failing.fail(kept, kept.run, kept.last_sequence)
        finally:
            self._beginning.discard(run_id)
            if run_id not in self._runs:
                self._leases.end(run_id)

    async def _carry_out(self, run: JournaledRun) -> None:
        run_id = run.scope.run_id
        try:
            await run.live()
            self._note_departure(run)
            if run.left_because:
                self.others.leave(run_id, run.left_because, LEFT_SECONDS)
        except Exception:
            _log.exception("run failed", run_id=run_id)
            await self._failing.fail(run.kept, run.view(), run.log.durable)
        finally:
            if self._runs.get(run_id) is run:
                del self._runs[run_id]
                self._leases.end(run_id)

    def _note_departure(self, run: JournaledRun) -> None:
        """A run is not held here any more."""
        if run.ended_as is not None and run.log.ended is None:
            self.counts.runs.note_ended(replace(run.view(), state=run.ended_as))
            return
        self._looking.on_let_go()
        if run.left_because:
            self.counts.journal.note_change("left")
        else:
            self.counts.journal.note_change("lost" if self._leaving is None else "handed_over")

    async def _let_go(self, run_id: str, epoch: int) -> None:
        with suppress(JournalFailed):
            await self.journal.let_go(run_id, epoch)

    async def _renew_for_ever(self) -> None:
        pause = self.times.renewal
        while True:
            await self._looking.until_renewal(pause)
            if self._has_dropped_name:  # it is the next life's
                return
            asked_at = time.monotonic()
            try:
                await self._renew()
            except JournalFailed:  # once it is back, those who held runs before are to have them before others
                self._note_failure()
                pause = min(self.times.claim, self.times.renewal)
            else:
                took = time.monotonic() - asked_at
                self.counts.journal.renewal_seconds.add(took)
                pause = max(0.0, self.times.renewal - took)

    def _note_failure(self) -> None:
        self._free_at = time.monotonic() + self.times.lease
        self.counts.journal.failures += 1

    async def _renew(self) -> None:
        asked_at = time.monotonic()
        before = dict(self._runs)
        for mine in await self._renewed():
            run = self._runs.get(mine.run_id)
            if run is not None and run.kept.epoch == mine.epoch:
                before.pop(mine.run_id, None)
                self._leases.begin(mine.run_id, asked_at)
                run.renewed()
                if mine.cancel_reason is not None:
                    run.cancel(mine.cancel_reason)
            elif mine.run_id in self._beginning:
                if mine.run_id in self._leases:  # it was claimed, and there is much to read before it goes on
                    self._leases.begin(mine.run_id, asked_at)
            else:
                # Its caller was gone before it had begun; whoever claims it goes on with it.
                self._tasks.create_task(self._let_go(mine.run_id, mine.epoch))  # what is held is renewed meanwhile
        for lost in before.values():
            lost.move(Fenced("another coordinator has taken the run over"))

    async def _renewed(self) -> Sequence[Held]:
        try:
            return await self.journal.renew(self.holder, self.times.lease)
        except NameTaken as error:
            _log.error("this coordinator stops: another one has its name", why=error.message)
            for run in self:
                run.move(Fenced(error.message))
            for run in list(self):
                await run.until_gone()
            raise

    async def _watch_leases(self) -> None:
        """Leave runs that nobody knows how they stand, as their leases could not be renewed for long (F5)."""
        while True:
            await asyncio.sleep(self.times.margin / 4)
            for run in list(self):
                if self._leases.is_given_up(run.scope.run_id):
                    run.move(Fenced("the run's lease could not be renewed"))

    async def _claim_for_ever(self, resume: Resume) -> None:
        while True:
            now = time.monotonic()
            await self._looking.until_claim(until - now for until in (*self.others.ends(), self._free_at))
            if self._leaving is not None:
                return
            if time.monotonic() < self._free_at:
                continue
            try:
                asked_at, claimed = await self._claim()
            except JournalFailed:
                self._note_failure()
                continue
            if claimed:
                self._looking.on_let_go()  # there may be more
            for kept in claimed:
                _log.info("run claimed", run_id=kept.run.run_id, epoch=kept.epoch)
                self._tasks.create_task(self._resume(kept, asked_at, resume))

    async def _claim(self) -> tuple[float, Sequence[KeptRun]]:
        """The runs that nobody held, and since when they are certainly held here."""
        asked_at = time.monotonic()
        ours = {run_id for run_id in self._runs if not self.may_write(run_id)}  # to be renewed, or they are others'
        wanted = Claim(kinds=KINDS, besides=frozenset(self.others.at(asked_at) | ours))
        claimed = await self.journal.claim(self.holder, self.times.lease, wanted=wanted)
        self._beginning.update(kept.run.run_id for kept in claimed)
        if claimed and time.monotonic() - asked_at > self.times.renewal:  # it waited, perhaps for most of a lease
            asked_at = time.monotonic()
            claimed = await self._still_held(claimed)
        return asked_at, claimed

    async def _still_held(self, claimed: Sequence[KeptRun]) -> Sequence[KeptRun]:
        """Those of the runs whose leases could be renewed; the others are nobody's soon."""
        held: set[tuple[str, int]] = set()
        try:
            held = {(mine.run_id, mine.epoch) for mine in await self._renewed()}
        finally:
            lost = [kept.run.run_id for kept in claimed if (kept.run.run_id, kept.epoch) not in held]
            self._beginning.difference_update(lost)
        return [kept for kept in claimed if kept.run.run_id not in lost]

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self.times.sweep)
            with suppress(JournalFailed):
                await self.journal.sweep(self._retention)
