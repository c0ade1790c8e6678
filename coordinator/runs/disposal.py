"""Runs that are to be gone: cancelled if need be, and waited for (C27)."""

from __future__ import annotations

import asyncio

from coordinator.runs.attached import AttachedRun
from coordinator.runs.journaled import JournaledRun
from coordinator.runs.queries import RunQueries
from coordinator.runs.runs import Runs
from fanfold.errors import DeadlineExceeded
from fanfold.model.principal import Principal
from fanfold.model.run import Run

REASON = "it was disposed of"


async def dispose(runs: Runs, queries: RunQueries, principal: Principal, run_id: str, within: float) -> Run:
    """Cancel a run if it goes on, and wait until nothing of it is left, at most `within` seconds; the run as it ended.

    Raises:
        NotFound: there is no such run.
        PermissionDenied: the principal sees it, but does not control it.
        HeldElsewhere: another coordinator holds it.
        DeadlineExceeded: something of it is still there; says what.
    """
    attached = runs.attached.get(run_id)
    run = await queries.cancel(principal, run_id, REASON)
    try:
        async with asyncio.timeout(within):
            if attached is not None:
                await attached.until_gone()
                return attached.view()
            if run_id in runs.ended:
                return run
            while isinstance(found := await runs.durable.locate(run_id), JournaledRun):
                await found.until_gone()
            return found.run
    except TimeoutError:
        left = await _left_of(attached, queries, principal, run)
        raise DeadlineExceeded(f"not gone within {within:g} s: {left}", reason="NOT_DISPOSED") from None


async def _left_of(attached: AttachedRun | None, queries: RunQueries, principal: Principal, run: Run) -> str:
    run = attached.view() if attached is not None else await queries.get(principal, run.run_id)
    steps = f"{run.steps.running:,} steps" if run.steps.running != 1 else "1 step"
    return f"{steps} of {run.run_id}" + (f", which waits for {run.waiting_on}" if run.waiting_on else "")
