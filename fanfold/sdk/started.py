"""Runs that go on without the program that started them (C31)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fanfold.errors import Cancelled, InternalError
from fanfold.model.run import EventDetail, ParallelResult, Run, RunEnded, RunEvent, RunState, RunStepEvent
from fanfold.model.script import ScriptResult
from fanfold.model.script_checks import result_from_json
from fanfold.model.step import StepEnded, StepOutcome
from fanfold.sdk.jobs import Jobs
from fanfold.sdk.runs import DISPOSE_SECONDS, RunMethods


class Started:
    """A detached run, whatever its kind. Nothing of it depends on this object.

    `id` is its job's id, by which the job registry knows it, and `run_id` the one that the coordinators know.
    """

    def __init__(self, mesh: RunMethods, run: Run) -> None:
        self._mesh = mesh
        self.id = run.job_id
        self.run_id = run.run_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id}, {self.run_id})"

    async def get(self) -> Run:
        """The run as it is."""
        return await self._mesh.run(self.run_id)

    async def wait(self, *, timeout: float | None = None) -> Run:
        """The run once it has ended, or as it is after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                async with aclosing(self.events(detail=EventDetail.OUTCOMES)) as events:
                    async for event in events:
                        if isinstance(event, RunEnded):
                            return event.run
        except TimeoutError:
            pass
        return await self.get()

    async def events(
        self, *, from_sequence: int = 0, detail: EventDetail = EventDetail.PROGRESS
    ) -> AsyncGenerator[RunEvent, None]:
        """Its events from a number on, until it has ended. Raises as `Mesh.watch`."""
        async with aclosing(self._mesh.watch(self.run_id, from_sequence=from_sequence, detail=detail)) as events:
            async for event in events:
                yield event

    async def cancel(self, reason: str = "") -> Run:
        """Ask it to stop; gives it as it then is. The first reason is kept."""
        return await self._mesh.cancel(self.run_id, reason)

    async def dispose(self, *, timeout: float = DISPOSE_SECONDS) -> Run:
        """Have it gone: cancelled if it goes on, and waited for `timeout` seconds. Raises as `Mesh.dispose`."""
        return await self._mesh.dispose(self.run_id, timeout=timeout)


class StartedRun(Started):
    """A detached fan-out, which `Mesh.start` or `Mesh.started` gives."""

    async def result(self) -> ParallelResult:
        """Its outcomes in the order of its steps, once it has ended.

        Raises:
            Cancelled: somebody has cancelled it.
            InternalError: it could not go on.
        """
        outcomes: dict[int, StepOutcome] = {}
        run: Run | None = None
        error = ""
        async with aclosing(self.events(detail=EventDetail.OUTCOMES)) as events:
            async for event in events:
                if isinstance(event, RunStepEvent) and isinstance(event.event, StepEnded):
                    outcomes[event.index] = event.event.outcome
                elif isinstance(event, RunEnded):
                    run, error = event.run, event.error if event.out_of_quota else ""
        run = run or await self.get()
        if run.state is RunState.CANCELLED:
            raise Cancelled(f"the run was cancelled: {run.reason or 'nobody says why'}")
        if run.state is RunState.FAILED and not error:
            raise InternalError(f"the run could not go on: {run.reason}", reason="RUN_FAILED")
        return ParallelResult([outcomes[index] for index in sorted(outcomes)], run.budget, error)


class StartedWorkflow(Started):
    """A detached workflow script, which `Mesh.start_workflow` or `Mesh.started_workflow` gives."""

    def __init__(self, mesh: RunMethods, jobs: Jobs, run: Run) -> None:
        super().__init__(mesh, run)
        self._jobs = jobs

    async def result(self) -> ScriptResult:
        """What came of it, once it has ended and nothing of it is left: also an error is a result (C26).

        Raises:
            FailedPrecondition: the job registry keeps no result of it, as it is too large or the job was given up.
        """
        await self._jobs.wait(self.id)
        return result_from_json(await self._jobs.result(self.id))
