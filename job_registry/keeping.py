"""What has to be done again and again while the registry is up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from fanfold.errors import Unavailable
from job_registry.jobs import Jobs
from job_registry.store.store import Retention

CUT_SECONDS = 2.5
_MAX_LOOK_SECONDS = 1.0
_LOOKS_A_DEADLINE = 20
_RENEWALS_A_LEASE = 3

_log = structlog.get_logger(__name__)


async def keep_deadlines(jobs: Jobs) -> None:
    """Give up the jobs whose producers are overdue, for ever."""
    times = jobs.config.producers
    interval = min(times.grace / _LOOKS_A_DEADLINE, times.stop_deadline / _LOOKS_A_DEADLINE, _MAX_LOOK_SECONDS)
    await _again_and_again(interval, jobs.give_up_overdue)


async def keep_output(jobs: Jobs) -> None:
    """Write new output and progress, and which producers have gone, for ever."""

    async def keep() -> None:
        await jobs.output.keep()
        await jobs.tell_left()

    await _again_and_again(jobs.config.output.write_interval, keep)


async def keep_ends(jobs: Jobs) -> None:
    """Keep only the end of the output of settled jobs, for ever; also of those whose registry was killed before."""
    await _again_and_again(CUT_SECONDS, jobs.output.cut)


async def keep_presence(jobs: Jobs) -> None:
    """Say that this registry is there, for ever."""
    await _again_and_again(jobs.config.store.lease / _RENEWALS_A_LEASE, jobs.renew)


async def keep_retention(jobs: Jobs) -> None:
    """Forget settled jobs that are beyond the retention, for ever."""
    limits = jobs.config.retention
    retention = Retention(
        settled_jobs=limits.settled_jobs,
        settled_jobs_per_owner=limits.settled_jobs_per_owner,
        settled_age=limits.settled_age,
    )

    async def purge() -> None:
        purged = await jobs.store.purge(retention)
        if purged:
            _log.info("settled jobs forgotten", jobs=purged)

    await _again_and_again(jobs.config.store.sweep, purge)


async def _again_and_again(interval: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(interval)
        try:
            await work()
        except Unavailable as error:  # the store's log says more; the next turn tries again
            _log.warning("not now", work=work.__name__, why=error.message)
