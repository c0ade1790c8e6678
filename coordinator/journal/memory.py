"""A journal in memory, for tests of what uses one: it keeps every promise but that of outliving its process."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from coordinator.journal.journal import (
    ANY,
    Append,
    Claim,
    Entry,
    Held,
    Holder,
    KeptRun,
    Listener,
    Namesake,
    NewRun,
    Record,
    Retention,
    RunFilter,
)
from coordinator.journal.rules import frees_request, held, is_repeated, name_taken, refuse_misfit, workflow_held
from fanfold.model.run import Run, RunState
from fanfold.sql.instants import instant, micros, moment, seconds

_NOBODY = Holder(name="", address="")


@dataclass(slots=True)
class _Kept:
    """A run; instants are in microseconds since 1970. `lease_until` is None when nobody holds it."""

    run: Run
    request: bytes
    request_id: str
    request_digest: str
    holder: Holder
    created_at: int
    held_since: int
    lease_until: int | None
    epoch: int = 1
    ended_at: int | None = None
    nodes: list[str] = field(default_factory=list)
    last_sequence: int = 0
    entries: list[Entry] = field(default_factory=list)
    cancel_reason: str | None = None

    @property
    def workflow_id(self) -> str:
        return self.run.workflow_id

    def is_held(self, now: int) -> bool:
        return self.lease_until is not None and self.lease_until > now

    def view(self, now: int) -> KeptRun:
        is_held = self.lease_until is not None
        return KeptRun(
            run=self.run,
            request_id=self.request_id,
            request_digest=self.request_digest,
            holder=self.holder if is_held else _NOBODY,
            epoch=self.epoch,
            lease_left=0.0 if self.lease_until is None else seconds(self.lease_until - now),
            held_since=moment(self.held_since),
            nodes=tuple(self.nodes),
            last_sequence=self.last_sequence,
            cancel_reason=self.cancel_reason,
        )


@dataclass(slots=True)
class _Workflow:
    records: dict[str, Record] = field(default_factory=dict)
    written_at: int = 0


class MemoryJournal:
    """A Journal in memory; see there for what the methods promise. `clock` gives seconds since 1970."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._runs: dict[str, _Kept] = {}
        self._workflows: dict[tuple[str, str], _Workflow] = {}
        self._names: dict[str, Namesake] = {}

    async def accept(self, new: NewRun, holder: Holder, lease: float) -> KeptRun:
        """Keep a new run, or give the one that is kept for it."""
        now, owner = self._now(), new.run.owner
        kept, earlier = self._runs.get(new.run.run_id), None
        if kept is None:
            earlier = self._of_request(owner, new.request_id)
            kept = earlier if earlier is not None and not frees_request(earlier.run) else None
        if kept is not None:
            return kept.view(now)
        self._refuse_held_workflow(owner, new.run.workflow_id)
        if earlier is not None:
            earlier.request_id = ""
        created_at = max([now, *(kept.created_at + 1 for kept in self._runs.values() if kept.run.owner == owner)])
        run = replace(
            new.run, state=RunState.PENDING, created_at=moment(created_at), ended_at=None, coordinator=holder.name
        )
        kept = _Kept(
            run=run,
            request=new.request,
            request_id=new.request_id,
            request_digest=new.request_digest,
            holder=holder,
            created_at=created_at,
            held_since=now,
            lease_until=now + micros(lease),
        )
        self._runs[run.run_id] = kept
        return kept.view(now)

    async def append(self, append: Append) -> None:
        """Write to a run."""
        found = self._runs.get(append.run_id)
        if is_repeated(append, found):
            return
        kept = held(found, append.epoch)
        refuse_misfit(append, kept)
        now = self._now()
        kept.run = replace(
            kept.run,
            state=append.state,
            steps=append.steps,
            budget=append.budget or kept.run.budget,
            waiting_on=append.waiting_on,
            reason=append.reason,
        )
        kept.entries += append.entries
        kept.last_sequence += len(append.entries)
        workflow = (kept.run.owner, kept.workflow_id)
        if append.forget_records:
            self._workflows.pop(workflow, None)
        else:
            self._write_records(workflow, append.records)
        if append.state is not RunState.RUNNING:
            kept.ended_at, kept.lease_until = now, None
            kept.run = replace(kept.run, ended_at=moment(now))

    async def use_node(self, run_id: str, epoch: int, node: str) -> None:
        """Note a node of a run."""
        kept = held(self._runs.get(run_id), epoch)
        if node not in kept.nodes:
            kept.nodes.append(node)

    async def set_job(self, run_id: str, epoch: int, job_id: str) -> None:
        """Note a run's job."""
        kept = held(self._runs.get(run_id), epoch)
        kept.run = replace(kept.run, job_id=job_id)

    async def take_name(self, holder: Holder, lease: float) -> Namesake | None:
        """Have a name."""
        namesake = self._namesake(holder)
        if namesake is not None and not (namesake.address and namesake.address == holder.address):
            return namesake
        self._have_name(holder, lease)
        return None

    async def drop_name(self, holder: Holder) -> None:
        """Leave a name to others."""
        namesake = self._names.get(holder.name)
        if namesake is not None and namesake.life == holder.life:
            del self._names[holder.name]

    async def renew(self, holder: Holder, lease: float) -> Sequence[Held]:
        """Renew the leases of a holder."""
        if (namesake := self._namesake(holder)) is not None:
            raise name_taken(holder, namesake)
        self._have_name(holder, lease)
        now = self._now()
        held = (kept for kept in self._runs.values() if kept.lease_until is not None)
        mine = [kept for kept in held if kept.holder.name == holder.name]
        for kept in mine:
            kept.lease_until = now + micros(lease)
        return [Held(run_id=kept.run.run_id, epoch=kept.epoch, cancel_reason=kept.cancel_reason) for kept in mine]

    async def claim(self, holder: Holder, lease: float, limit: int = 100, wanted: Claim = ANY) -> Sequence[KeptRun]:
        """Take over runs that nobody holds."""
        now = self._now()
        free = [
            kept
            for kept in self._runs.values()
            if kept.ended_at is None
            and not kept.is_held(now)
            and kept.run.kind in wanted.kinds
            and kept.run.run_id not in wanted.besides
        ]
        free.sort(key=lambda kept: kept.lease_until or 0)
        unheld = [math.inf if kept.lease_until is None else seconds(now - kept.lease_until) for kept in free[:limit]]
        for kept in free[:limit]:
            kept.holder, kept.held_since, kept.lease_until = holder, now, now + micros(lease)
            kept.epoch += 1
            kept.run = replace(kept.run, coordinator=holder.name)
        return [replace(kept.view(now), unheld=idle) for kept, idle in zip(free, unheld, strict=False)]

    @property
    def tells(self) -> bool:
        """It tells nobody."""
        return False

    async def listen(self, listener: Listener) -> None:
        """There is nothing to hear."""
        await asyncio.get_running_loop().create_future()

    async def until_end_of_leases(self) -> float:
        """Seconds until a lease is over."""
        now = self._now()
        ends = (kept.lease_until for kept in self._runs.values() if kept.ended_at is None)
        return min((seconds(until - now) for until in ends if until is not None and until > now), default=math.inf)

    async def let_go(self, run_id: str, epoch: int) -> None:
        """Give a run up."""
        kept = self._runs.get(run_id)
        if kept is not None and kept.epoch == epoch:
            kept.lease_until = None

    async def ask_to_cancel(self, run_id: str, reason: str) -> None:
        """Note that a run is to be cancelled."""
        kept = self._runs.get(run_id)
        if kept is not None and kept.ended_at is None and kept.cancel_reason is None:
            kept.cancel_reason = reason

    async def find(self, run_id: str) -> KeptRun | None:
        """A run by its id."""
        return self._view(self._runs.get(run_id))

    async def find_workflow(self, owner: str, workflow_id: str) -> KeptRun | None:
        """The latest run of a workflow."""
        return self._view(max(self._of_workflow(owner, workflow_id), key=lambda kept: kept.created_at, default=None))

    async def find_request(self, owner: str, request_id: str) -> KeptRun | None:
        """The run of a request."""
        return self._view(self._of_request(owner, request_id))

    async def list_runs(self, wanted: RunFilter) -> Sequence[KeptRun]:
        """Runs by filter."""
        now = self._now()
        before = (instant(wanted.before[0]), wanted.before[1]) if wanted.before else None
        found = [
            kept
            for kept in self._runs.values()
            if wanted.covers(kept.run.owner)
            and (not wanted.states or kept.run.state in wanted.states)
            and (not wanted.workflow_id or kept.workflow_id == wanted.workflow_id)
            and (before is None or (kept.created_at, kept.run.run_id) < before)
        ]
        found.sort(key=lambda kept: (kept.created_at, kept.run.run_id), reverse=True)
        return [kept.view(now) for kept in found[: wanted.limit]]

    async def request(self, run_id: str) -> bytes:
        """What a run was asked for."""
        kept = self._runs.get(run_id)
        return b"" if kept is None else kept.request

    async def entries(self, run_id: str, first: int, max_bytes: int = 1_048_576) -> Sequence[Entry]:
        """Events of a run."""
        kept = self._runs.get(run_id)
        found: list[Entry] = []
        size = 0
        for entry in kept.entries if kept else ():
            if entry.sequence >= first:
                size += len(entry.data)
                if found and size > max_bytes:
                    break
                found.append(entry)
        return found

    async def records(self, owner: str, workflow_id: str) -> Sequence[Record]:
        """Records of a workflow."""
        workflow = self._workflows.get((owner, workflow_id))
        return [] if workflow is None else list(workflow.records.values())

    async def put_records(self, owner: str, workflow_id: str, records: Sequence[Record]) -> None:
        """Replace the records of a workflow."""
        self._refuse_held_workflow(owner, workflow_id)
        self._workflows.pop((owner, workflow_id), None)
        self._write_records((owner, workflow_id), records)

    async def sweep(self, retention: Retention) -> int:
        """Delete what is beyond the retention."""
        now = self._now()
        ended = [(kept.ended_at, run_id) for run_id, kept in self._runs.items() if kept.ended_at is not None]
        ended.sort(reverse=True)
        too_old = now - micros(retention.ended_run_age)
        surplus = {run_id for at, run_id in ended if at < too_old} | {
            run_id for _, run_id in ended[retention.ended_runs :]
        }
        events = 0
        for _, run_id in ended:
            events += len(self._runs[run_id].entries)
            if events > retention.events:
                self._runs[run_id].entries.clear()
        for run_id in surplus:
            del self._runs[run_id]
        self._sweep_records(now - micros(retention.record_age))
        return len(surplus)

    def _now(self) -> int:
        return micros(self._clock())

    def _namesake(self, holder: Holder) -> Namesake | None:
        """Another life that has the holder's name."""
        namesake = self._names.get(holder.name)
        if namesake is None or namesake.life == holder.life or instant(namesake.until) <= self._now():
            return None
        return namesake

    def _have_name(self, holder: Holder, lease: float) -> None:
        until = moment(self._now() + micros(lease))
        self._names[holder.name] = Namesake(life=holder.life, address=holder.address, until=until)

    def _view(self, kept: _Kept | None) -> KeptRun | None:
        return None if kept is None else kept.view(self._now())

    def _of_workflow(self, owner: str, workflow_id: str) -> Iterator[_Kept]:
        its = (owner, workflow_id)
        return (kept for kept in self._runs.values() if workflow_id and (kept.run.owner, kept.workflow_id) == its)

    def _of_request(self, owner: str, request_id: str) -> _Kept | None:
        its = (owner, request_id)
        return next(
            (kept for kept in self._runs.values() if request_id and (kept.run.owner, kept.request_id) == its), None
        )

    def _refuse_held_workflow(self, owner: str, workflow_id: str) -> None:
        for kept in self._of_workflow(owner, workflow_id):
            if kept.ended_at is None:
                raise workflow_held(workflow_id, kept.run.run_id, moment(kept.held_since))

    def _write_records(self, workflow: tuple[str, str], records: Sequence[Record]) -> None:
        if records:
            kept = self._workflows.setdefault(workflow, _Workflow())
            kept.records |= {record.key: record for record in records}
            kept.written_at = self._now()

    def _sweep_records(self, too_old: int) -> None:
        going_on = {(kept.run.owner, kept.workflow_id) for kept in self._runs.values() if kept.ended_at is None}
        stale = [its for its, workflow in self._workflows.items() if workflow.written_at < too_old]
        for its in stale:
            if its not in going_on:
                del self._workflows[its]
