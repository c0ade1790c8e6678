"""Detached runs: each is a job in the registry, and its coordinator is the job's producer (C31).

The journal is the truth of what has become of a run, the registry of whose it is and whether it is to stop. So a job is
registered before anything starts, is told only what is durable, and is settled before its run ends in the journal:
whoever takes a run over does again what of this its former holder may not have done, and all of it may be done twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import structlog

from coordinator.journal.journal import Fenced, Journal, JournalFailed, KeptRun, PayloadGone
from coordinator.runs.job_log import LOG, JobLog
from coordinator.runs.outage import RETRY_SECONDS
from coordinator.runs.reader import LiveReader
from coordinator.runs.results import MAX_RESULT_BYTES, Result
from coordinator.tracing import UNTRACED, RunTrace
from fanfold.backoff import full_jitter
from fanfold.errors import (
    CALL_BROKEN,
    DRAINING,
    GONE,
    NO_CONNECTION,
    Aborted,
    FanfoldError,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from fanfold.model.job import JobSpec, JobState
from fanfold.model.run import Run, RunKind, RunState, StepCounts
from fanfold.ports import JobProducer, JobRegistry, Production

MAX_LABEL = 128
PROGRESS_SECONDS = 0.5
"""Least seconds between two progress lines."""

LONGEST_PAUSE = 5.0

MOST_REFUSALS = 6
"""How often registries may stop before a new run is registered; then it is not."""

GIVEN_UP = "the job registry has given its job up"
FORGOTTEN = "the job registry knows nothing of its job, as after a restart of one that keeps jobs in memory"

_KINDS = {RunKind.SCRIPT: "workflow"}
"""Kinds of jobs, where they are not named as the runs are."""

_STATES = {
    RunState.COMPLETED: JobState.COMPLETED,
    RunState.CANCELLED: JobState.KILLED,
    RunState.FAILED: JobState.FAILED,
}

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Jobs:
    """Where detached runs are registered, and asked to stop."""

    producer: JobProducer
    registry_for: Callable[[str], JobRegistry]
    """The registry, as it is for a principal."""


class Attended(Protocol):
    """A run, as far as its job may have a word in it."""

    def cancel(self, reason: str) -> None:
        """Have it cancelled."""
        ...

    def move(self, why: FanfoldError) -> None:
        """Stop it here without a trace."""
        ...


class RunJob:
    """The job that a detached run is, while this coordinator holds the run.

    `counts` tells how many steps are where, and `trace` what the run is traced as.
    """

    def __init__(
        self,
        kept: KeptRun,
        jobs: Jobs,
        journal: Journal,
        *,
        label: str,
        parent: str = "",
        counts: Callable[[], StepCounts],
        trace: RunTrace = UNTRACED,
    ) -> None:
        self._kept = kept
        self._jobs = jobs
        self._journal = journal
        self._label = label[:MAX_LABEL]
        self._parent = parent if len(parent) <= MAX_LABEL else ""  # half of it would name somebody else
        self._counts = counts
        self._trace = trace
        self._production: Production | None = None
        self._attached = asyncio.Event()
        self._lines = JobLog()
        self._stop_reason: str | None = None
        """Why the registry says that it is to stop."""
        self._run_stops_for: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.refusal: FanfoldError | None = None
        """Why it could not be registered."""
        if kept.cancel_reason is not None:
            self.stop(kept.cancel_reason)
        if kept.run.job_id:
            production = jobs.producer.reattach(kept.run.job_id, epoch=kept.epoch, rewrites=True, trace=trace.context)
            self._attach(production)

    @property
    def job_id(self) -> str:
        """Its id; empty before it is registered."""
        return self._production.job_id if self._production is not None else ""

    def _attach(self, production: Production) -> None:
        self._production = production
        self._attached.set()

    async def register(self) -> None:
        """Register it, unless that was done before, and have the run's row know its id.

        A run that was taken over may have been registered by its former holder, so then the registry is waited for. In
        place of one that is about to stop, or has just stopped, another one is asked for a few seconds.

        Raises:
            FanfoldError: why it cannot be registered; `refusal` from then on.
        """
        failures = 0
        while self._production is None:
            try:
                await self._open()
            except Unavailable as error:
                failures += 1
                is_update = error.reason in {DRAINING, CALL_BROKEN} and failures < MOST_REFUSALS
                if self._kept.epoch == 1 and not is_update:
                    self.refusal = _of_registry(error)
                    raise self.refusal from error
                await asyncio.sleep(full_jitter(failures, first=0.2, most=LONGEST_PAUSE))
            except Aborted:  # it is another coordinator's by now
                raise
            except FanfoldError as error:
                self.refusal = error
                raise

    async def _open(self) -> None:
        run = self._kept.run
        spec = JobSpec(
            kind=_KINDS.get(run.kind, run.kind.value), label=self._label, parent=self._parent, sources=(LOG,)
        )

        async def start() -> str:
            return run.run_id

        production = await self._jobs.producer.open_job(
            spec, run.run_id, epoch=self._kept.epoch, start=start, owner=run.owner, trace=self._trace.context
        )
        try:
            await self._keep_id(production.job_id)
        except BaseException:
            await production.let_go()
            raise
        self._attach(production)

    async def _keep_id(self, job_id: str) -> None:
        """Have the id kept: whoever takes the run over goes on with this job."""
        while True:
            try:
                await self._journal.set_job(self._kept.run.run_id, self._kept.epoch, job_id)
            except JournalFailed:  # until the run's lease is over
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def attend(self, run: Attended, reader: LiveReader) -> None:
        """Tell how the run fares, as `reader` gives its events from the first on, and have it stop when it is to."""
        await self._attached.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._lines.write(self._attachment, reader))
            tasks.create_task(self._tell_progress())
            tasks.create_task(self._hear_of_stop(run))
            tasks.create_task(self._pass_stop_on())

    def stop(self, reason: str) -> None:
        """The run was asked to stop: have the registry know it too."""
        self._run_stops_for.set_result(reason)

    async def _pass_stop_on(self) -> None:
        await self._tell_stop(await self._run_stops_for)

    async def _hear_of_stop(self, run: Attended) -> None:
        try:
            reason = self._stop_reason = await self._attachment.stop_asked()
        except NotFound as error:
            reason = self._stop_reason = GIVEN_UP if error.reason == GONE else FORGOTTEN
        except Aborted:
            run.move(Fenced())
            return
        except FanfoldError as error:  # the run goes on all the same
            _log.warning("a job is not ours to produce", job_id=self.job_id, why=error.message)
            return
        with suppress(JournalFailed):  # whoever takes the run over hears it from the registry
            await self._journal.ask_to_cancel(self._kept.run.run_id, reason)
        run.cancel(reason)

    async def _tell_stop(self, reason: str) -> str:
        """Have the registry know that the run is to stop, if that is news; the reason that it keeps (C38)."""
        failures = 0
        while self._stop_reason is None:
            try:
                job = await self._jobs.registry_for(self._kept.run.owner).cancel_job(self.job_id, reason)
            except Unavailable:
                failures += 1
                await asyncio.sleep(full_jitter(failures, first=0.2, most=LONGEST_PAUSE))
            except FanfoldError as error:
                _log.info("the registry does not stop a job", job_id=self.job_id, why=error.message)
                self._stop_reason = reason
            else:
                self._stop_reason = job.stop_reason or reason
        return self._stop_reason

    async def _tell_progress(self) -> None:
        told = None
        while True:
            line = progress_line(self._counts())
            if line != told:
                self._attachment.tell_progress(line)
                told = line
            await asyncio.sleep(PROGRESS_SECONDS)

    async def settle(self, run: Run, result: Result | None) -> str:
        """Say how the run ended, and wait until that is kept; gives the reason that is kept of it.

        All that it tells must be durable before. Without a job there is nothing to be said.
        """
        reason = run.reason
        if self._production is None:
            return reason
        await self._lines.until_told(run.steps.succeeded + run.steps.failed)
        if run.state is RunState.CANCELLED:
            reason = await self._tell_stop(reason)
        self._attachment.tell_progress(progress_line(run.steps))
        try:
            await self._settle(_STATES[run.state], detail_of(run, reason), result)
        except Aborted:
            raise Fenced from None
        except Unavailable:  # the journal, or this coordinator is about to stop
            raise
        except FanfoldError as error:  # as when the registry has given it up; the run ends all the same
            _log.warning("a job cannot be settled", job_id=self.job_id, run_id=run.run_id, why=error.message)
        return reason

    async def fail(self, run: Run) -> None:
        """Settle it for a run that nobody carries out: what is not in its log by now will not come."""
        self._lines.end()
        await self.register()
        await self.settle(run, None)

    async def _settle(self, state: JobState, detail: str, result: Result | None) -> None:
        if result is not None:
            most = self._attachment.max_result_bytes
            try:
                whole = await result.encoded(MAX_RESULT_BYTES if most is None else most)
                await self._attachment.settle(state, detail, whole)
            except (ResourceExhausted, PayloadGone) as error:
                detail = f"{detail}; no result: {error.message}"
            else:
                return
        await self._attachment.settle(state, detail)

    async def let_go(self) -> None:
        """Produce it no longer from here."""
        if self._production is not None:
            await self._production.let_go()

    @property
    def _attachment(self) -> Production:
        assert self._production is not None
        return self._production


def progress_line(steps: StepCounts) -> str:
    """How far a run is, in words: "7/12 steps, 1 failed, 3 running"."""
    parts = [f"{steps.succeeded + steps.failed:,}/{steps.total:,} steps"]
    if steps.failed:
        parts.append(f"{steps.failed:,} failed")
    if steps.running:
        parts.append(f"{steps.running:,} running")
    return ", ".join(parts)


def detail_of(run: Run, reason: str) -> str:
    """How a run ended, in words."""
    counts = progress_line(run.steps)
    return f"{counts}: {reason}" if reason else counts


def _of_registry(error: Unavailable) -> Unavailable:
    """The error as a caller is told it, who has reached a coordinator and would look for a fault there."""
    if error.reason != NO_CONNECTION:
        return error
    return Unavailable(f"the coordinator's job registry {error.message}", reason="REGISTRY_UNREACHABLE")
