"""Jobs in memory: for tests, and for a registry that need not outlive its process."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from fanfold.model.job import OutputPiece, OutputSource
from fanfold.model.principal import outermost
from job_registry.limits import Room
from job_registry.refusals import stale_epoch, superseded
from job_registry.states import Move
from job_registry.store.store import (
    RESULT_PART_BYTES,
    Changes,
    ChangesGone,
    JobQuery,
    KeptJob,
    KeptOutput,
    Listener,
    Moved,
    NewJob,
    OutputWrite,
    Retention,
    is_beyond,
    matches,
)


class MemoryJobStore:
    """A JobStore in memory; see there for what the methods promise."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.identity = uuid.uuid4().hex
        self._now = now
        self._jobs: dict[int, KeptJob] = {}
        self._output: dict[tuple[int, str], list[OutputPiece]] = {}
        self._results: dict[int, bytes] = {}
        self._uncut: set[int] = set()
        self._last_number = 0
        self._last_change = 0
        self._forgotten = 0

    async def take_number(self) -> int:
        """The next number."""
        self._last_number += 1
        return self._last_number

    async def add(self, new: NewJob, room: Room) -> KeptJob:
        """Keep a new job."""
        known = await self.find_request(new.owner, new.request_id)
        if known is not None:
            return known
        job = KeptJob(
            number=new.number,
            kind=new.kind,
            owner=new.owner,
            producer=new.producer,
            request_id=new.request_id,
            epoch=new.epoch,
            holder=new.holder,
            label=new.label,
            parent=new.parent,
            holds=new.holds,
            sources=tuple(OutputSource(name=name) for name in new.sources),
            created_at=self._now(),
            change=self._next_change(),
            trace=new.trace,
        )
        self._jobs[job.number] = job
        return job

    async def attach(self, number: int, epoch: int, holder: str, hold: int) -> KeptJob:
        """Have another stream hold a job."""
        job = self._jobs[number]
        if job.state.is_settled:
            return job
        if epoch < job.epoch:
            raise stale_epoch(job.epoch, epoch)
        if hold != job.hold:
            return job
        return self._changed(job, epoch=epoch, holder=holder, hold=hold + 1)

    async def leave(self, holds: Mapping[int, int]) -> None:
        """Note that streams have ended."""
        for number, hold in holds.items():
            if (job := self._held(number, hold)) is not None and job.holder:
                self._changed(job, holder="")

    async def move(
        self,
        number: int,
        move: Move,
        *,
        hold: int | None = None,
        progress: str | None = None,
        output: Sequence[OutputWrite] = (),
        result: bytes | None = None,
        settled_bytes: int = sys.maxsize,
    ) -> Moved:
        """Move a job."""
        job = self._jobs[number]
        if hold is not None and not job.state.is_settled and hold != job.hold:
            raise superseded()
        standing = move(job.standing)
        if standing == job.standing:
            return Moved(job, is_new=False)
        for write in output:
            self._write(write)
        job = self._changed(
            self._jobs[number], standing=standing, progress=job.progress if progress is None else progress
        )
        if standing.state.is_settled:
            size = None if result is None else len(result)
            job = self._jobs[number] = replace(job, settled_at=self._now(), result_bytes=size)
            if result is not None:
                self._results[number] = result
            if is_beyond(job.sources, (), settled_bytes):
                self._uncut.add(number)
        return Moved(job, is_new=True)

    async def write_output(
        self, writes: Sequence[OutputWrite], progress: Mapping[int, str], holds: Mapping[int, int]
    ) -> None:
        """Keep output and progress."""
        for write in writes:
            if self._held(write.number, holds[write.number]) is not None:
                self._write(write)
        for number, line in progress.items():
            if (job := self._held(number, holds[number])) is not None:
                self._changed(job, progress=line)

    async def uncut(self, seconds: float) -> Sequence[int]:
        """Settled jobs that are to be cut."""
        before = self._now() - timedelta(seconds=seconds)
        return sorted(number for number in self._uncut if (at := self._jobs[number].settled_at) and at < before)

    async def cut_output(self, cut: Mapping[int, Sequence[OutputWrite]]) -> None:
        """Keep less output."""
        for number in self._uncut & cut.keys():
            for write in cut[number]:
                self._write(write)
        self._uncut -= cut.keys()

    def _held(self, number: int, hold: int) -> KeptJob | None:
        job = self._jobs[number]
        return job if job.hold == hold and not job.state.is_settled else None

    def _changed(self, job: KeptJob, **fields: Any) -> KeptJob:
        self._jobs[job.number] = job = replace(job, change=self._next_change(), **fields)
        return job

    def _write(self, write: OutputWrite) -> None:
        job = self._jobs[write.number]
        sources = tuple(write.source if source.name == write.source.name else source for source in job.sources)
        self._jobs[write.number] = replace(job, sources=sources)
        key = (write.number, write.source.name)
        kept = [*([] if write.afresh else self._output.get(key, [])), *write.pieces]
        earliest = write.source.earliest_offset
        self._output[key] = [piece for piece in kept if piece.offset + len(piece.data) > earliest]

    async def find(self, number: int) -> KeptJob | None:
        """A job."""
        return self._jobs.get(number)

    async def find_request(self, owner: str, request_id: str) -> KeptJob | None:
        """The job of a request."""
        its = (job for job in self._jobs.values() if job.owner == owner and job.request_id == request_id)
        return next((job for job in its if request_id), None)

    async def unsettled(self) -> Sequence[KeptJob]:
        """Jobs that are not settled."""
        return [job for job in self._jobs.values() if not job.state.is_settled]

    async def list_jobs(self, query: JobQuery, before: int | None = None) -> Sequence[KeptJob]:
        """Jobs by descending number."""
        numbers = sorted((number for number in self._jobs if before is None or number < before), reverse=True)
        found = (self._jobs[number] for number in numbers)
        return [job for job in found if not job.deleted and matches(job, query)][: query.limit]

    async def position(self) -> int:
        """The last change."""
        return self._last_change

    async def changes(self, query: JobQuery, after: int) -> Changes:
        """Jobs by change."""
        if not self._forgotten <= after <= self._last_change:
            raise ChangesGone
        found = sorted((job for job in self._jobs.values() if job.change > after), key=lambda job: job.change)
        jobs = [job for job in found if matches(job, query)][: query.limit]
        return Changes(jobs=jobs, position=jobs[-1].change if len(jobs) == query.limit else self._last_change)

    async def output(self, number: int, source: str | None = None, offset: int = 0) -> Sequence[KeptOutput]:
        """Output of sources."""
        job = self._jobs.get(number)
        wanted = [each for each in job.sources if source in (None, each.name)] if job else []
        return [KeptOutput(source=each, pieces=self._pieces(number, each.name, offset)) for each in wanted]

    def _pieces(self, number: int, source: str, offset: int) -> Sequence[OutputPiece]:
        return [piece for piece in self._output.get((number, source), ()) if piece.offset + len(piece.data) > offset]

    async def result_part(self, number: int, part: int) -> bytes | None:
        """A part of a result."""
        result = self._results.get(number)
        first = part * RESULT_PART_BYTES
        if result is None or (first >= len(result) and part > 0):
            return None
        return result[first : first + RESULT_PART_BYTES]

    async def renew(self, name: str, lease: float) -> Collection[str]:
        """The one registry that there is."""
        return [name]

    async def listen(self, listener: Listener) -> None:
        """There is nothing to hear."""
        await asyncio.get_running_loop().create_future()

    async def delete(self, number: int) -> None:
        """Delete a settled job."""
        self._forget_contents(number)
        self._jobs[number] = replace(self._jobs[number], deleted=True, request_id="", result_bytes=None)

    async def purge(self, retention: Retention) -> int:
        """Forget what is beyond the retention."""
        surplus = _surplus_of_owners(self._settled(deleted=False), retention.settled_jobs_per_owner)
        for job in surplus:
            await self.delete(job.number)
        oldest = self._now() - timedelta(seconds=retention.settled_age)
        doomed = [
            job
            for deleted in (False, True)
            for place, job in enumerate(self._settled(deleted=deleted))
            if place >= retention.settled_jobs or (job.settled_at is not None and job.settled_at < oldest)
        ]
        for job in doomed:
            self._forget_contents(job.number)
            del self._jobs[job.number]
            self._forgotten = max(self._forgotten, job.change)
        return len(surplus) + len(doomed)

    def _settled(self, *, deleted: bool) -> list[KeptJob]:
        """Settled jobs that are deleted or not, the last change first."""
        found = [job for job in self._jobs.values() if job.settled_at and job.deleted is deleted]
        return sorted(found, key=lambda job: -job.change)

    def _forget_contents(self, number: int) -> None:
        self._results.pop(number, None)
        self._uncut.discard(number)
        for key in [key for key in self._output if key[0] == number]:
            del self._output[key]

    def _next_change(self) -> int:
        self._last_change += 1
        return self._last_change


def _surplus_of_owners(newest_first: Sequence[KeptJob], most: int) -> list[KeptJob]:
    """The jobs that are more than `most` of their owner with those nested in it."""
    found, counted = [], Counter[str]()
    for job in newest_first:
        counted[outermost(job.owner)] += 1
        if counted[outermost(job.owner)] > most:
            found.append(job)
    return found
