"""Callers who watch, follow and stop jobs while faults happen, and note what they are told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import aclosing, suppress

from fanfold.clients.job_registry import JobRegistryClient
from fanfold.errors import FanfoldError
from fanfold.model.job import Job, JobFilter, JobState, OutputPiece
from faults.job_checker import Seen
from support.mesh import until

PAGE = 20
SETTLED = (JobState.COMPLETED, JobState.KILLED, JobState.FAILED)


class Onlooker:
    """One who calls at one address."""

    def __init__(self, client: JobRegistryClient, draw: random.Random) -> None:
        self._client = client
        self._draw = draw
        self._cursor = ""
        self._told: list[Job] = []
        self._followed: dict[str, list[OutputPiece]] = {}
        self._following: set[str] = set()
        self.asked_to_stop: set[str] = set()
        self.stopping: set[str] = set()

    async def begin(self) -> None:
        """Remember from where to watch."""
        self._cursor = (await self._client.list_jobs()).watch_cursor

    async def look_on(self) -> None:
        """Watch, and ask some jobs to stop and follow others, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            while True:
                await asyncio.sleep(self._draw.uniform(0.1, 0.4))
                with suppress(FanfoldError):
                    await self._meddle(tasks)

    async def until_told(self, settled: set[str]) -> None:
        """Wait until it was told of all these settlements, and all of the output that it follows of these jobs."""
        await until(lambda: settled <= {job.id for job in self._told}, "a watcher is told every settlement")
        await until(lambda: self._following.isdisjoint(settled), "a follower comes to the end of a settled job")

    async def _watch(self) -> None:
        """Take every settlement; the client goes on from its cursor when a registry is back."""
        async with aclosing(self._client.watch_jobs(self._cursor, JobFilter(states=SETTLED))) as changes:
            async for change in changes:
                self._told.extend(change.jobs)

    async def _meddle(self, tasks: asyncio.TaskGroup) -> None:
        page = await self._client.list_jobs(JobFilter(states=[JobState.RUNNING]))
        if page.jobs:
            job_id = self._draw.choice(page.jobs).id
            if self._draw.random() < 0.5:
                await self._stop(job_id)
            elif job_id not in self._followed:
                tasks.create_task(self._follow(job_id))

    async def _stop(self, job_id: str) -> None:
        self.asked_to_stop.add(job_id)  # whether or not the answer comes, it may have taken effect
        job = await self._client.cancel_job(job_id, "the storm's onlooker")
        if job.state is JobState.STOPPING:
            self.stopping.add(job_id)

    async def _follow(self, job_id: str) -> None:
        pieces = self._followed[job_id] = []
        self._following.add(job_id)
        async with aclosing(self._client.read_output(job_id, follow=True)) as output:
            async for piece in output:
                pieces.append(piece)
        self._following.discard(job_id)

    async def seen(self) -> Seen:
        """All that it has seen and sees now."""
        jobs = await self.jobs()
        return Seen(
            jobs=jobs,
            output={job.id: await self._output_of(job.id) for job in jobs},
            told=self._told,
            followed=self._followed,
        )

    async def jobs(self) -> Sequence[Job]:
        """All jobs there are."""
        page = await self._client.list_jobs(page_size=PAGE)
        jobs = [*page.jobs]
        while page.next_page_token:
            page = await self._client.list_jobs(page_size=PAGE, page_token=page.next_page_token)
            jobs += page.jobs
        return jobs

    async def _output_of(self, job_id: str) -> bytes:
        async with aclosing(self._client.read_output(job_id)) as pieces:
            return b"".join([piece.data async for piece in pieces])
