"""Jobs whose registry's database goes away for a while: producers go on, and nothing of what they tell is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from fanfold.clients.job_producer import GrpcJobProducer
from fanfold.clients.production import GrpcProduction
from fanfold.errors import Unavailable
from fanfold.model.job import Job, JobSpec, JobState
from fanfold.sdk.jobs import Jobs
from support.coordinators import Registry, registry_in
from support.mesh import until
from support.postgres import Server, running_server

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

LEASE = 1.0
"""Seconds after which other registries would take this one to be gone."""
GRACE = 60.0
"""Seconds after which the job of a producer that is away fails: much longer, as it is by default for 30 s."""
OUTAGE = 4.0


@asynccontextmanager
async def on_postgres(folder: Path) -> AsyncIterator[tuple[Server, Registry]]:
    with running_server() as server:
        store = {"path": "", "url": server.url("postgres"), "lease": LEASE}
        producers = {"grace": GRACE, "stop_deadline": 30.0}
        async with registry_in(folder, store=store, producers=producers) as registry:
            yield server, registry


async def opened(producer: GrpcJobProducer, request_id: str, starts: list[str]) -> GrpcProduction:
    """A job, registered as soon as that can be."""

    async def start() -> str:
        starts.append(request_id)
        return ""

    while True:
        try:
            return await producer.open_job(JobSpec(kind="k", sources=("out",)), request_id, epoch=1, start=start)
        except Unavailable:  # nothing was started
            await asyncio.sleep(0.1)


async def cancelled(jobs: Jobs, job_id: str) -> Job:
    """A job that is asked to stop as soon as that can be."""
    while True:
        try:
            return await jobs.cancel(job_id, "enough")
        except Unavailable:
            await asyncio.sleep(0.1)


@pytest.mark.contract("C37", "C38", "F3", "F6", "F16", "F23")
async def test_producers_go_on_over_an_outage_of_the_registrys_database_and_nothing_is_lost(tmp_path: Path) -> None:
    starts: list[str] = []
    read, told = bytearray(), list[str]()
    lines = [b"line %d\n" % number for number in range(600)]
    async with (
        on_postgres(tmp_path) as (server, registry),
        GrpcJobProducer(registry.address) as producer,
        Jobs(registry.address) as jobs,
    ):
        writes, settles, stops = [await opened(producer, name, starts) for name in ("writes", "settles", "stops")]

        async def follow() -> None:
            async with aclosing(jobs.read_output(writes.job_id, follow=True)) as pieces:
                async for piece in pieces:
                    assert (piece.offset, piece.gap_bytes) == (len(read), 0)
                    read.extend(piece.data)

        async def watch() -> None:
            async with aclosing(jobs.watch(kind="k", states=["completed", "killed", "failed"])) as changes:
                async for change in changes:
                    told.extend(job.id for job in change.jobs)

        async def write() -> None:
            for line in lines:
                writes.write("out", line)
                await asyncio.sleep(1.5 * OUTAGE / len(lines))

        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch())
            following = tasks.create_task(follow())
            writing = tasks.create_task(write())
            await until(lambda: len(read) > 0, "something is written")
            server.stop()
            settling = tasks.create_task(settles.settle(JobState.COMPLETED, "done", b"all"))
            late = tasks.create_task(opened(producer, "late", starts))
            stopping = tasks.create_task(cancelled(jobs, stops.job_id))
            await asyncio.sleep(OUTAGE)
            assert not settling.done(), "a settlement was told that is not durable"
            assert not late.done(), "a job was registered that is not durable"
            assert not stopping.done(), "a stop was told that is not durable"
            server.start()
            async with asyncio.timeout(60):
                assert (await settling).state is JobState.COMPLETED
                assert (await stopping).state is JobState.STOPPING
                assert await stops.stop_asked() == "enough"
                assert (await stops.settle(JobState.KILLED, "stopped")).state is JobState.KILLED
                assert (await (await late).settle(JobState.COMPLETED, "done")).state is JobState.COMPLETED
                await writing
                await until(lambda: len(read) == len(b"".join(lines)), "all is read", 60)
                assert (await writes.settle(JobState.COMPLETED, "done")).state is JobState.COMPLETED
                await following
                await until(lambda: len(set(told)) == 4, "all settlements are told")
            watching.cancel()
        assert bytes(read) == b"".join(lines)
        assert sorted(starts) == ["late", "settles", "stops", "writes"]
        assert len(told) == 4
        assert await jobs.result(settles.job_id) == b"all"
        kept = await jobs.list(kind="k")
        assert len(kept) == 4, "a job was registered twice"
