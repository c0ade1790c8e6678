"""What callers ask of jobs: how they fare, which there are, what has changed, and to stop or delete them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from fanfold.model.job import Job, JobFilter
from fanfold.model.principal import Principal
from job_registry import access
from job_registry.jobs import Jobs
from job_registry.store.store import JobQuery, KeptJob
from job_registry.views import view_of_kept, view_of_live

_CHANGES_AT_ONCE = 500

_SILENT_CHANGES = 1000
"""After so many changes that are not for a watcher it is told where it stands, so that its cursor does not grow old."""


@dataclass(frozen=True, slots=True)
class Page:
    """Jobs by descending number; whoever watches from `position` on misses nothing that happens after."""

    jobs: Sequence[Job]
    last_number: int | None
    position: int


class Queries:
    """What principals may ask of jobs. Each method raises NotFound for a job that is not there for them (C33)."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    @property
    def store_identity(self) -> str:
        """Tells positions of this store from those of others."""
        return self._jobs.store.identity

    async def get(self, principal: Principal, job_id: str) -> Job:
        """How a job fares."""
        return self._view(access.require_seen(principal, await self._jobs.find(job_id)))

    async def list_jobs(self, principal: Principal, wanted: JobFilter, size: int, before: int | None) -> Page:
        """A page of the jobs that the principal sees, with numbers below `before`; `last_number` if there are more."""
        store = self._jobs.store
        position = await store.position()  # first, so that what changes meanwhile is told twice rather than never
        query = JobQuery(reach=access.reach_of(principal), wanted=wanted, limit=size + 1)
        found = await store.list_jobs(query, before)
        page = found[:size]
        last = page[-1].number if len(found) > size else None
        return Page(list(map(self._view, page)), last, position)

    async def wait(self, principal: Principal, job_id: str, seconds: float) -> Job:
        """The job once it is settled, or as it is when the time is over."""
        kept = access.require_seen(principal, await self._jobs.find(job_id))
        live = self._jobs.live(kept.number)
        if live is None:
            return view_of_kept(kept)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await live.ended.wait()
        return view_of_live(live, self._jobs.now())

    async def watch(
        self, principal: Principal, wanted: JobFilter, position: int | None
    ) -> AsyncGenerator[tuple[Sequence[Job], int], None]:
        """Jobs after changes from a position on, or from now on, and where that leads; the first at once.

        Raises:
            ChangesGone: changes from that position on are no longer held.
        """
        recent = self._jobs.recent
        query = JobQuery(reach=access.reach_of(principal), wanted=wanted, limit=_CHANGES_AT_ONCE)
        if position is None:
            position = await self._jobs.store.position()
        told: int | None = None
        while True:
            seen = recent.told.count
            changes = await recent.after(query, position)
            position = changes.position
            if changes.jobs or told is None or position - told >= _SILENT_CHANGES:
                yield list(map(self._view, changes.jobs)), position
                told = position
            if len(changes.jobs) < _CHANGES_AT_ONCE:
                await recent.told.wait(seen)

    async def cancel(self, principal: Principal, job_id: str, reason: str) -> Job:
        """Ask a job to stop (C38). Raises PermissionDenied if the principal sees it and no more."""
        kept = access.require_controlled(principal, await self._jobs.find(job_id))
        if kept.deleted:
            raise access.no_such_job()
        live = self._jobs.live(kept.number)
        if live is None:
            return view_of_kept(kept)
        await self._jobs.stop(live, reason or f"{principal.name} asked for it")
        return view_of_live(live, self._jobs.now())

    async def delete(self, principal: Principal, job_id: str) -> None:
        """Delete a settled job.

        Raises:
            PermissionDenied: the principal sees it and no more.
            FailedPrecondition: it is not settled.
        """
        await self._jobs.delete(access.require_controlled(principal, await self._jobs.find(job_id)))

    def _view(self, kept: KeptJob) -> Job:
        live = self._jobs.live(kept.number)
        # A settlement that the store has may not have come back to memory yet.
        if live is None or kept.state.is_settled:
            return view_of_kept(kept)
        view = view_of_live(live, self._jobs.now())
        # What the store has of the output of a job that is held elsewhere is newer than the job's last change.
        return view if live.held is not None else replace(view, sources=tuple(kept.sources))
