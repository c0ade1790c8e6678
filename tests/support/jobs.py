"""A job registry in memory, as coordinators and their callers use one: it can be away, refuse, and be asked to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from coordinator.runs.detached import Jobs
from fanfold.errors import GONE, Aborted, FanfoldError, NotFound, Unavailable
from fanfold.model.job import Job, JobSpec, JobState
from fanfold.model.trace import TraceContext
from fanfold.ports import Production, Start


@dataclass
class KeptJob:
    """A job as the registry has it."""

    job: Job
    spec: JobSpec
    epoch: int
    result: bytes | None = None
    log: bytearray = field(default_factory=bytearray)
    lines: list[str] = field(default_factory=list)
    """Its progress lines."""


class JobsInMemory:
    """Implements `JobProducer`, and as much of `JobRegistry` as coordinators use."""

    def __init__(self) -> None:
        self.jobs: dict[str, KeptJob] = {}
        self.requests: dict[str, str] = {}
        self.is_away = False
        self.answers = True
        """Whether those who register a job are told that it is one."""
        self.refusal: FanfoldError | None = None
        self.max_result_bytes: int | None = None
        self.why_gone = GONE
        """The reason for a job that is not there any more."""
        self.changed = asyncio.Event()

    def of(self, *_: Any) -> Jobs:
        """This registry as coordinators are given one."""
        registry: Any = self
        return Jobs(self, lambda _owner: registry)

    @property
    def only(self) -> KeptJob:
        """The one job that there is."""
        (kept,) = self.jobs.values()
        return kept

    def wake(self) -> None:
        """Something changed."""
        self.changed.set()
        self.changed = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self.changed.wait()

    def leave(self) -> None:
        """Be away."""
        self.is_away = True

    def come_back(self) -> None:
        """Be there again."""
        self.is_away = False
        self.wake()

    async def open_job(
        self,
        spec: JobSpec,
        request_id: str,
        *,
        epoch: int,
        start: Start,
        owner: str = "",
        trace: TraceContext | None = None,
    ) -> Production:
        if self.is_away:
            raise Unavailable("the registry is away")
        if self.refusal is not None:
            raise self.refusal
        if request_id not in self.requests:
            await start()
            job_id = f"{spec.kind}-{len(self.jobs) + 1}"
            job = Job(id=job_id, kind=spec.kind, label=spec.label, state=JobState.RUNNING, owner=owner)
            self.requests[request_id] = job_id
            self.jobs[job_id] = KeptJob(job, spec, epoch)
        await self.until(lambda: self.answers)
        return self.reattach(self.requests[request_id], epoch=epoch)

    def reattach(
        self, job_id: str, *, epoch: int, rewrites: bool = False, trace: TraceContext | None = None
    ) -> ProductionInMemory:
        return ProductionInMemory(self, job_id, epoch, rewrites=rewrites)

    async def cancel_job(self, job_id: str, reason: str = "") -> Job:
        if self.is_away:
            raise Unavailable("the registry is away")
        kept = self.jobs[job_id]
        if kept.job.state is JobState.RUNNING:
            kept.job = replace(kept.job, state=JobState.STOPPING, stop_reason=reason)
            self.wake()
        return kept.job


class ProductionInMemory:
    """Implements `Production`; what it is told while the registry is away is kept until that is back."""

    def __init__(self, registry: JobsInMemory, job_id: str, epoch: int, *, rewrites: bool) -> None:
        self._registry = registry
        self.job_id = job_id
        self.max_result_bytes = registry.max_result_bytes
        self._epoch = epoch
        self._skip = None if not rewrites else 0
        if job_id in registry.jobs:
            kept = registry.jobs[job_id]
            kept.epoch = max(kept.epoch, epoch)

    @property
    def _kept(self) -> KeptJob:
        kept = self._registry.jobs.get(self.job_id)
        if kept is None:
            raise NotFound("gone", reason=self._registry.why_gone)
        if kept.epoch > self._epoch:
            raise Aborted("another producer holds the job")
        return kept

    def write(self, source: str, data: bytes) -> None:
        kept = self._registry.jobs.get(self.job_id)
        if kept is None:
            return
        assert source in kept.spec.sources
        log = kept.log
        if self._skip is None:
            log += data
            return
        known = log[self._skip : self._skip + len(data)]
        assert data.startswith(known), "what is written again differs from what was written"
        log += data[len(known) :]
        self._skip += len(data)

    def tell_progress(self, line: str) -> None:
        if (kept := self._registry.jobs.get(self.job_id)) is not None:
            kept.lines.append(line)

    async def stop_asked(self) -> str:
        def is_due() -> bool:
            return not self._registry.is_away and bool(self._kept.job.stop_reason)

        await self._registry.until(is_due)
        return self._kept.job.stop_reason

    async def settle(self, state: JobState, detail: str = "", result: bytes | None = None) -> Job:
        await self._registry.until(lambda: not self._registry.is_away)
        kept = self._kept
        if not kept.job.state.is_settled:
            if state is JobState.KILLED and not kept.job.stop_reason:
                state = JobState.FAILED
            kept.job = replace(kept.job, state=state, detail=detail, has_result=result is not None)
            kept.result = result
        return kept.job

    async def let_go(self) -> None:
        pass
