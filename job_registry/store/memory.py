"""Jobs in memory: for tests, and for a registry that need not outlive its process."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from fanfold.model.job import OutputPiece, OutputSource
from fanfold.model.principal import outermost
from job_registry.states import Standing
from job_registry.store.store import (
    RESULT_PART_BYTES,
    Changes,
    ChangesGone,
    JobQuery,
    KeptJob,
    NewJob,
    Output,
    OutputWrite,
    Retention,
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
        self._last_number = 0
        self._last_change = 0
        self._forgotten = 0

    async def take_number(self) -> int:
        """The next number."""
        self._last_number += 1
        return self._last_number

    async def add(self, new: NewJob) -> KeptJob:
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
            label=new.label,
            parent=new.parent,
            holds=new.holds,
            sources=tuple(OutputSource(name=name) for name in new.sources),
            created_at=self._now(),
            change=self._next_change(),
        )
        self._jobs[job.number] = job
        return job

    async def attach(self, number: int, epoch: int) -> None:
        """Note an epoch."""
        self._jobs[number] = replace(self._jobs[number], epoch=epoch)

    async def move(
        self,
        number: int,
        standing: Standing,
        *,
        progress: str = "",
        output: Sequence[OutputWrite] = (),
        result: bytes | None = None,
    ) -> KeptJob:
        """Note where a job stands."""
        job = self._jobs[number]
        if job.state.is_settled:
            return job
        await self.write_output(output, {})
        job = replace(self._jobs[number], standing=standing, progress=progress, change=self._next_change())
        if standing.state.is_settled:
            job = replace(job, settled_at=self._now(), result_bytes=None if result is None else len(result))
            if result is not None:
                self._results[number] = result
        self._jobs[number] = job
        return job

    async def write_output(self, writes: Sequence[OutputWrite], progress: Mapping[int, str]) -> None:
        """Keep output and progress."""
        for write in writes:
            if not self._jobs[write.number].state.is_settled:
                self._write(write)
        for number, line in progress.items():
            if not self._jobs[number].state.is_settled:
                self._jobs[number] = replace(self._jobs[number], progress=line, change=self._next_change())

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

    async def unsettled_output(self) -> Output:
        """Output of jobs that are not settled."""
        return {key: list(kept) for key, kept in self._output.items() if not self._jobs[key[0]].state.is_settled}

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

    async def output(self, number: int, source: str) -> Sequence[OutputPiece]:
        """Output of a source."""
        return list(self._output.get((number, source), ()))

    async def result_part(self, number: int, part: int) -> bytes | None:
        """A part of a result."""
        result = self._results.get(number)
        first = part * RESULT_PART_BYTES
        if result is None or (first >= len(result) and part > 0):
            return None
        return result[first : first + RESULT_PART_BYTES]

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
