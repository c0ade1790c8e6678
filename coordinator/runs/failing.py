"""Ends runs that nobody can go on with, and the jobs that they are (C31)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import structlog

from coordinator.counts import Counts
from coordinator.journal.journal import Append, Entry, Fenced, Journal, JournalFailed, KeptRun
from coordinator.runs.detached import Jobs, RunJob
from fanfold.errors import Aborted, FanfoldError, Unavailable
from fanfold.model.run import Run, RunEnded, RunState
from fanfold.wire.run import event_to_bytes

_log = structlog.get_logger(__name__)

_CANNOT = "the coordinator cannot carry it out; its log says why"

_SETTLED_WITHIN = 5.0
"""Seconds that the job of a run that cannot be gone on with gets to be settled, before the run is left as it was."""


class Failing:
    """Ends runs as failed that are held here. `jobs` is where detached runs are registered, if they can be."""

    def __init__(self, journal: Journal, jobs: Jobs | None, counts: Counts) -> None:
        self._journal = journal
        self._jobs = jobs
        self._counts = counts

    async def fail(self, kept: KeptRun, run: Run, last_sequence: int, reason: str = _CANNOT) -> None:
        """End a run, its job first; where that cannot be settled yet, the run is let go, to be tried again."""
        now = datetime.now(UTC)
        steps = replace(run.steps, running=0)
        run = replace(run, state=RunState.FAILED, reason=reason, steps=steps, ended_at=now, waiting_on="")
        try:
            run = await self._with_job_failed(kept, run)
        except (Unavailable, Aborted, TimeoutError):
            _log.warning("the job of a run that failed cannot be settled yet", run_id=run.run_id)
            with suppress(JournalFailed):
                await self._journal.let_go(run.run_id, kept.epoch)
            return
        except FanfoldError as error:  # it was no job, and is not to be one
            _log.warning("a run that failed is no job", run_id=run.run_id, why=error.message)
        with suppress(JournalFailed, Fenced):
            await self._append_end(kept, RunEnded(sequence=last_sequence + 1, time=now, run=run, error=reason))
            self._counts.runs.note_ended(run)

    async def _append_end(self, kept: KeptRun, ended: RunEnded) -> None:
        run = ended.run
        await self._journal.append(
            Append(
                run_id=run.run_id,
                epoch=kept.epoch,
                entries=[Entry(ended.sequence, event_to_bytes(ended))],
                steps=run.steps,
                state=run.state,
                reason=run.reason,
            )
        )

    async def _with_job_failed(self, kept: KeptRun, run: Run) -> Run:
        """The run, once the job that it is has failed as it has."""
        if run.attached or self._jobs is None:
            return run
        kept = replace(kept, run=replace(kept.run, job_id=run.job_id))
        job = RunJob(kept, self._jobs, self._journal, label=run.workflow_id or run.kind, counts=lambda: run.steps)
        try:
            async with asyncio.timeout(_SETTLED_WITHIN):
                await job.fail(run)
            return replace(run, job_id=job.job_id)
        finally:
            await job.let_go()
