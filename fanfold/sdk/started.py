"""A run that goes on without the program that started it (C31)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from fanfold.errors import Cancelled, InternalError
from fanfold.model.run import EventDetail, ParallelResult, Run, RunEnded, RunEvent, RunState, RunStepEvent
from fanfold.model.step import StepEnded, StepOutcome
from fanfold.sdk.runs import DISPOSE_SECONDS

if TYPE_CHECKING:
    from fanfold.sdk.mesh import Mesh


class StartedRun:
    """A detached run, which `Mesh.start` or `Mesh.started` gives. Nothing of it depends on this object.

    `id` is its job's id, by which the job registry knows it, and `run_id` the one that the coordinators know.
    """

    def __init__(self, mesh: Mesh, run: Run) -> None:
        self._mesh = mesh
        self.id = run.job_id
        self.run_id = run.run_id

    def __repr__(self) -> str:
        return f"StartedRun({self.id}, {self.run_id})"

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

    async def result(self) -> ParallelResult:
        """Its outcomes in the order of its steps, once it has ended.

        Raises:
            Cancelled: somebody has cancelled it.
            InternalError: it could not go on.
        """
        outcomes: dict[int, StepOutcome] = {}
        run: Run | None = None
        async with aclosing(self.events(detail=EventDetail.OUTCOMES)) as events:
            async for event in events:
                if isinstance(event, RunStepEvent) and isinstance(event.event, StepEnded):
                    outcomes[event.index] = event.event.outcome
                elif isinstance(event, RunEnded):
                    run = event.run
        run = run or await self.get()
        if run.state is RunState.CANCELLED:
            raise Cancelled(f"the run was cancelled: {run.reason or 'nobody says why'}")
        if run.state is RunState.FAILED:
            raise InternalError(f"the run could not go on: {run.reason}", reason="RUN_FAILED")
        return ParallelResult([outcomes[index] for index in sorted(outcomes)], run.budget)

    async def cancel(self, reason: str = "") -> Run:
        """Ask it to stop; gives it as it then is. The first reason is kept."""
        return await self._mesh.cancel(self.run_id, reason)

    async def dispose(self, *, timeout: float = DISPOSE_SECONDS) -> Run:
        """Have it gone: cancelled if it goes on, and waited for. Raises as `Mesh.dispose`."""
        return await self._mesh.dispose(self.run_id, timeout=timeout)
