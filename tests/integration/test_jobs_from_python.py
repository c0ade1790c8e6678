"""Jobs as Python programs produce, follow and wait for them, over a registry that is killed and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from fanfold import SyncMesh
from fanfold.clients.job_producer import GrpcJobProducer
from fanfold.clients.production import GrpcProduction
from fanfold.errors import Aborted, FailedPrecondition, InvalidArgument, NotFound, Unavailable
from fanfold.model.job import JobSpec, JobState
from fanfold.sdk.jobs import Jobs
from support.coordinators import Registry, coordinators, registry_in
from support.mesh import until
from support.noted import step

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    async with registry_in(tmp_path) as up:
        yield up


@pytest.fixture
async def producer(registry: Registry) -> AsyncIterator[GrpcJobProducer]:
    async with GrpcJobProducer(registry.address) as up:
        yield up


@pytest.fixture
async def jobs(registry: Registry) -> AsyncIterator[Jobs]:
    async with Jobs(registry.address) as up:
        yield up


async def nothing() -> str:
    return ""


async def produced(producer: GrpcJobProducer, request_id: str = "r", **fields: str) -> GrpcProduction:
    spec = JobSpec(kind="audit", sources=("out",), **fields)  # type: ignore[arg-type]
    return await producer.open_job(spec, request_id, epoch=1, start=nothing)


@pytest.mark.contract("C37", "F16", "F22")
async def test_what_is_written_while_the_registry_is_killed_again_and_again_is_read_once_and_in_order(
    registry: Registry, producer: GrpcJobProducer, jobs: Jobs
) -> None:
    production = await produced(producer)
    read = bytearray()

    async def follow() -> None:
        async with aclosing(jobs.read_output(production.job_id, follow=True)) as pieces:
            async for piece in pieces:
                assert (piece.offset, piece.gap_bytes) == (len(read), 0)
                read.extend(piece.data)

    lines = [b"line %d\n" % number for number in range(3_000)]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follow())
        for number, line in enumerate(lines):
            production.write("out", line)
            await asyncio.sleep(0.001)
            if number % 1_000 == 500:
                await registry.kill()
                await registry.start()
        # Of a settled job less is kept than this.
        await until(lambda: len(read) == len(b"".join(lines)), "all is read", 60)
        job = await production.settle(JobState.COMPLETED, "done", b"all")
    assert bytes(read) == b"".join(lines)
    assert (job.state, job.detail) == (JobState.COMPLETED, "done")
    assert await jobs.result(production.job_id) == b"all"


@pytest.mark.contract("F23", "C36")
async def test_each_settlement_is_watched_once_and_waited_for_over_a_registry_that_is_killed(
    registry: Registry, producer: GrpcJobProducer, jobs: Jobs
) -> None:
    settled: list[str] = []
    last = await produced(producer, "last", label="last")

    async def watch() -> None:
        async with aclosing(jobs.watch(kind="audit", states=["completed"])) as changes:
            async for change in changes:
                settled.extend(job.id for job in change.jobs)
                if last.job_id in settled:
                    return

    async def wait() -> None:
        assert (await jobs.wait(last.job_id)).state is JobState.COMPLETED

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(watch())
        tasks.create_task(wait())
        expected = []
        for number in range(6):
            if number == 3:
                await registry.kill()
                await registry.start()
            production = await opened_again(producer, f"r{number}")
            await production.settle(JobState.COMPLETED)
            if number or settled:  # the first may have been before it watched
                expected.append(production.job_id)
        await last.settle(JobState.COMPLETED)
    assert [job_id for job_id in settled if job_id in expected] == expected
    assert len(set(settled)) == len(settled)


async def opened_again(producer: GrpcJobProducer, request_id: str) -> GrpcProduction:
    """A job, asked for until the registry is there."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await produced(producer, request_id)
            except Unavailable:
                await asyncio.sleep(0.1)


@pytest.mark.contract("C38", "F16")
async def test_a_job_is_asked_to_stop_read_afterwards_and_removed(producer: GrpcJobProducer, jobs: Jobs) -> None:
    production = await produced(producer, label="one")
    production.write("out", b"so far")
    with pytest.raises(FailedPrecondition):
        await jobs.result(production.job_id)
    asked = await jobs.cancel(production.job_id, "enough")
    assert asked.state is JobState.STOPPING
    assert (await jobs.wait(production.job_id, timeout=0.2)).state is JobState.STOPPING
    assert await production.stop_asked() == "enough"
    await production.settle(JobState.KILLED)
    assert b"".join([piece.data async for piece in jobs.read_output(production.job_id, "out")]) == b"so far"
    assert [job.id for job in await jobs.list(label="one", states=[JobState.KILLED])] == [production.job_id]
    await jobs.delete(production.job_id)
    with pytest.raises(NotFound):
        await jobs.get(production.job_id)
    with pytest.raises(InvalidArgument, match="must be of running"):
        await jobs.list(states=["ended"])


@pytest.mark.contract("C32", "C38")
async def test_whoever_comes_with_a_newer_epoch_has_the_job(registry: Registry, producer: GrpcJobProducer) -> None:
    production = await produced(producer)
    production.write("out", b"first ")
    async with GrpcJobProducer(registry.address) as other, Jobs(registry.address) as jobs:
        successor = other.reattach(production.job_id, epoch=2)
        with pytest.raises(Aborted):
            async with asyncio.timeout(20):
                await production.stop_asked()
        successor.write("out", b"second")
        await successor.settle(JobState.COMPLETED)
        pieces = [piece.data async for piece in jobs.read_output(production.job_id)]
    assert b"".join(pieces) == b"first second"


@pytest.mark.contract("C31")
async def test_ordinary_code_starts_runs_and_asks_for_jobs(tmp_path: Path, registry: Registry) -> None:
    async with coordinators(tmp_path, 1, registry=registry.address) as up:

        def program() -> None:
            with SyncMesh(up.servers, registry=registry.address) as mesh:
                run = mesh.start([step("a", "echo a"), step("b", "exit 1")])
                assert run.wait(timeout=60).steps.failed == 1
                assert [outcome.success for outcome in run.result()] == [True, False]
                assert [job.id for job in mesh.jobs.list()] == [run.id]
                assert mesh.jobs.wait(run.id, timeout=30).detail == "2/2 steps, 1 failed"
                text = b"".join(piece.data for piece in mesh.jobs.read_output(run.id)).decode()
                assert sorted(line.split()[1] for line in text.splitlines()) == ["a:", "b:"]
                assert b'"outcomes"' in mesh.jobs.result(run.id)
                assert mesh.started(run.run_id).id == run.id
                assert type(next(iter(run.events()))).__name__ == "RunStarted"
                long = mesh.start([step("c", "sleep 60")])
                assert long.dispose().state == "cancelled"
                assert mesh.jobs.get(long.id).state == "killed"
                for change in mesh.jobs.watch(cursor=""):
                    assert change.cursor
                    break

        await asyncio.to_thread(program)


async def test_a_registry_that_stays_away_is_told_of(registry: Registry, producer: GrpcJobProducer) -> None:
    production = await produced(producer)
    async with Jobs(registry.address, reconnect_timeout=0.5) as jobs:
        pieces = jobs.read_output(production.job_id, follow=True)
        reading = asyncio.ensure_future(anext(pieces, None))
        await asyncio.sleep(0.2)
        await registry.kill()
        with pytest.raises(Unavailable):
            await reading
    await registry.start()
    await until(lambda: not production.is_lost, "the producer has found it again", 30)
