"""Several registries on one store: each serves every job, wherever its producer is, and goes on for those that die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from fanfold.clients.job_producer import GrpcJobProducer
from fanfold.model.job import JobSpec, JobState
from fanfold.sdk.jobs import Jobs
from fanfold.v1 import job_pb2
from fanfold.v1 import job_registry_pb2 as pb
from job_registry.config import JobLimits
from job_registry.refusals import TooManyJobs
from job_registry.states import LOST
from support.coordinators import registry_in
from support.job_stores import DONE, add, add_settled, moved, postgres_stores
from support.journals import eventually
from support.mesh import DEADLINE
from support.postgres import Server
from support.proxy import proxied
from support.registries import COMPLETED, FAILED, KILLED, RawProducer, registry_alone, stub_of

if TYPE_CHECKING:
    from fanfold.v1.job_registry_pb2_grpc import JobRegistryAsyncStub

pytestmark = pytest.mark.contract("C31", "C44")

SHORT = {"lease": 3.0}


@dataclass(frozen=True, slots=True)
class Two:
    """What calls two registries on one store."""

    one: JobRegistryAsyncStub
    other: JobRegistryAsyncStub


@asynccontextmanager
async def registries(urls: Sequence[str], *, lease: float = 30.0, **settings: Any) -> AsyncIterator[Two]:
    """Registries in this process, each with an address of their database."""
    async with AsyncExitStack() as stack:
        stubs = []
        for url in urls:
            store = {"url": url, "lease": lease}
            serving = await stack.enter_async_context(registry_alone(store=store, **settings))
            stubs.append(await stack.enter_async_context(stub_of(serving.address)))
        yield Two(*stubs)


@pytest.fixture
async def two(postgres: Server) -> AsyncIterator[Two]:
    with postgres.database() as url:
        async with registries([url, url]) as both:
            yield both


async def get(stub: JobRegistryAsyncStub, job_id: str) -> job_pb2.Job:
    return (await stub.GetJob(pb.GetJobRequest(job_id=job_id))).job


async def read(stub: JobRegistryAsyncStub, job_id: str, offset: int = 0, *, follow: bool = False) -> list[Any]:
    asked = pb.ReadJobOutputRequest(job_id=job_id, offset=offset, follow=follow)
    async with asyncio.timeout(DEADLINE):
        return [(it.offset, it.data, it.gap_bytes) async for it in stub.ReadJobOutput(asked)]


@pytest.mark.contract("C35", "C36", "C37", "C38")
async def test_a_job_is_found_followed_stopped_and_deleted_where_its_producer_is_not(two: Two) -> None:
    producer = RawProducer(two.one)
    await producer.open(label="l")
    job = await producer.start()
    assert await get(two.other, job.id) == job
    assert [it.id for it in (await two.other.ListJobs(pb.ListJobsRequest())).jobs] == [job.id]
    waiting = two.other.WaitJob(pb.WaitJobRequest(job_id=job.id))
    follower = asyncio.create_task(read(two.other, job.id, follow=True))
    await producer.progress("half")
    await producer.write(b"some ")
    while not await read(two.other, job.id):
        await asyncio.sleep(0.01)
    assert (await get(two.other, job.id)).sources[0].total_bytes == 5
    stopping = (await two.other.CancelJob(pb.CancelJobRequest(job_id=job.id, reason="enough"))).job
    assert (stopping.state, stopping.waiting_on) == (job_pb2.JOB_STATE_STOPPING, "its producer, to stop")
    assert (await producer.told_of("cancel")).reason == "enough"
    await producer.write(b"output", 5)
    done = await producer.settle(KILLED, "stopped", b"result")
    async with asyncio.timeout(DEADLINE):
        assert (await waiting).job == done
    assert "".join(data.decode() for _, data, _ in await follower) == "some output"
    assert (done.stop_reason, done.progress) == ("enough", "half")
    parts = [it.data async for it in two.other.GetJobResult(pb.GetJobResultRequest(job_id=job.id))]
    assert parts == [b"result"]
    await two.other.DeleteJob(pb.DeleteJobRequest(job_id=job.id))
    with pytest.raises(grpc.aio.AioRpcError) as gone:
        await get(two.one, job.id)
    assert gone.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.contract("C37", "F16")
async def test_a_follower_elsewhere_gets_all_of_a_burst_before_the_end(two: Two) -> None:
    producer = RawProducer(two.one)
    await producer.open()
    job = await producer.start()
    follower = asyncio.create_task(read(two.other, job.id, follow=True))
    text = "".join(f"line {number} ä\n" for number in range(10_000)).encode()  # more than is kept of settled jobs
    await producer.write(text)
    await producer.settle()
    pieces = await follower
    assert b"".join(data for _, data, _ in pieces) == text
    assert all(gap == 0 for _, _, gap in pieces)


@pytest.mark.contract("C32", "C38", "F5")
async def test_a_producer_that_comes_to_another_registry_is_superseded_at_the_first(two: Two) -> None:
    first = RawProducer(two.one)
    await first.open()
    job = await first.start()
    await first.write(b"first")
    while not await read(two.other, job.id):
        await asyncio.sleep(0.01)
    followers = [asyncio.create_task(read(stub, job.id, follow=True)) for stub in (two.one, two.other)]
    second = RawProducer(two.other)
    assert (await second.reattach(job.id)).job.sources[0].total_bytes == 5
    assert await first.error() == (grpc.StatusCode.ABORTED, "SUPERSEDED")
    await second.write(b", second", 5)
    third = RawProducer(two.one)
    kept = (await third.reattach(job.id, epoch=4)).job.sources[0].total_bytes
    assert await second.error() == (grpc.StatusCode.ABORTED, "SUPERSEDED")
    await third.write(b"first, second, third"[kept:], kept)
    stale = RawProducer(two.other)
    await stale.say(reattach=pb.ProduceReattach(job_id=job.id, epoch=3))
    assert await stale.error() == (grpc.StatusCode.ABORTED, "STALE_EPOCH")
    await third.settle()
    for follower in followers:
        assert b"".join(data for _, data, _ in await follower) == b"first, second, third"


@pytest.mark.contract("C32", "C44")
async def test_a_request_that_is_opened_at_both_has_one_job(two: Two) -> None:
    one, other = RawProducer(two.one), RawProducer(two.other)
    await one.open(request_id="r")
    await other.open(request_id="r")
    job = await one.start()
    assert (await other.start()).id == job.id
    assert await one.error() == (grpc.StatusCode.ABORTED, "SUPERSEDED")
    again = RawProducer(two.one)
    await again.say(open=pb.ProduceOpen(spec=job_pb2.JobSpec(kind="test", sources=["out"]), request_id="r"))
    assert (await again.told_of("committed")).job.id == job.id
    assert (await again.settle()).id == job.id
    assert len((await two.other.ListJobs(pb.ListJobsRequest())).jobs) == 1


@pytest.mark.contract("F23")
async def test_cursors_mean_the_same_at_both_and_each_settlement_is_told_once_for_them(two: Two) -> None:
    cursor = (await two.one.ListJobs(pb.ListJobsRequest())).watch_cursor
    wanted = pb.JobFilter(states=[COMPLETED])
    told: list[str] = []
    settled: list[str] = []
    for turn in range(6):
        for number, stub in enumerate((two.one, two.other)):
            producer = RawProducer(stub)
            await producer.open(request_id=f"r{turn}{number}")
            settled.append((await producer.start()).id)
            await producer.settle()
        watched = (two.one, two.other)[turn % 2].WatchJobs(pb.WatchJobsRequest(cursor=cursor, filter=wanted))
        async with asyncio.timeout(DEADLINE):
            while len(told) < len(settled):
                page: Any = await watched.read()
                told += [job.id for job in page.jobs]
                cursor = page.cursor
        watched.cancel()
    assert told == settled


@pytest.mark.contract("C39")
async def test_jobs_at_both_count_for_one_limit(postgres: Server) -> None:
    with postgres.database() as url:
        async with registries([url, url], limits={"live_jobs_per_owner": 2}) as two:
            producers = [RawProducer(two.one), RawProducer(two.other)]
            for number, producer in enumerate(producers):
                await producer.open(request_id=f"r{number}")
                await producer.start()
            for stub in (two.one, two.other):  # it has to hear of the other's job first
                while await admits(stub):
                    await asyncio.sleep(0.01)
            await producers[0].settle()
            while not await admits(two.other):
                await asyncio.sleep(0.01)


@pytest.mark.contract("C32", "C39")
@pytest.mark.parametrize("limit", ["live_jobs", "live_jobs_per_owner"])
async def test_what_both_admit_at_the_same_moment_does_not_go_beyond_a_limit(postgres: Server, limit: str) -> None:
    with postgres.database() as url:
        async with registries([url, url], limits={limit: 1}) as two:
            first, second = RawProducer(two.one), RawProducer(two.other)
            for number, producer in enumerate([first, second]):
                await producer.open(request_id=f"r{number}")
            await first.start()
            await second.say(started=pb.ProduceStarted())
            assert await second.error() == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_JOBS")
            (job,) = (await two.other.ListJobs(pb.ListJobsRequest())).jobs
            assert job.id == first.job_id
            await first.settle()
            while not await admits(two.other):
                await asyncio.sleep(0.01)


@pytest.mark.contract("C34", "C39")
async def test_the_store_counts_live_jobs_by_whom_they_are_for(postgres: Server) -> None:
    with postgres.database() as url:
        async with postgres_stores(url) as store:
            two, three = JobLimits(live_jobs_per_owner=2), JobLimits(live_jobs=3)
            await add_settled(store, owner="alice")
            first = await add(store, two, owner="alice/one", request_id="r")
            await add(store, two, owner="", producer="alice")
            await add(store, two, owner="alicea")
            for owner, producer in (("alice", "c"), ("alice/two", "c"), ("", "alice/one")):
                with pytest.raises(TooManyJobs, match=r"alice has as many .* live_jobs_per_owner is 2"):
                    await add(store, two, owner=owner, producer=producer)
            with pytest.raises(TooManyJobs, match=r"there are as many .* live_jobs is 3"):
                await add(store, three, owner="bob")
            assert (await add(store, three, owner="alice/one", request_id="r")).number == first.number
            await moved(store, first.number, DONE)
            await add(store, three, owner="alice", request_id="more")
            assert len(await store.unsettled()) == 3


@pytest.mark.contract("C39")
async def test_the_store_counts_all_live_jobs_where_those_that_a_registry_has_not_seen_may_be_too_many(
    postgres: Server,
) -> None:
    with postgres.database() as url:
        async with postgres_stores(url) as store:
            limits = JobLimits(live_jobs=4, live_jobs_per_owner=3)
            for _ in range(2):
                await moved(store, (await add(store)).number, DONE)
            position = await store.position()
            for owner in ("bob", "bob", "alice"):
                await add(store, limits, position, owner=owner)
            await add(store, limits, position, owner="alice")  # those newer ones might all be alice's, and are not
            with pytest.raises(TooManyJobs, match="live_jobs is 4"):
                await add(store, limits, position, owner="alice")
            assert len(await store.unsettled()) == 4


async def admits(stub: JobRegistryAsyncStub) -> bool:
    """Whether a registry admits one more job."""
    producer = RawProducer(stub)
    with suppress(grpc.aio.AioRpcError):
        await producer.open(request_id="more")
        producer.call.cancel()
        return True
    return False


@pytest.mark.contract("C38", "F3")
async def test_a_producer_that_is_away_from_both_is_given_up_once(postgres: Server) -> None:
    with postgres.database() as url:
        async with registries([url, url], producers={"grace": 1.5}) as two:
            producer = RawProducer(two.one)
            await producer.open()
            job = await producer.start()
            await asyncio.sleep(3.0)  # beyond the grace: to be at another registry is not to be away
            assert (await get(two.other, job.id)).waiting_on == ""
            cursor = (await two.one.ListJobs(pb.ListJobsRequest())).watch_cursor
            producer.call.cancel()
            for stub in (two.one, two.other):
                async with asyncio.timeout(DEADLINE):
                    lost = (await stub.WaitJob(pb.WaitJobRequest(job_id=job.id))).job
                assert (lost.state, lost.detail) == (FAILED, LOST)
                late = RawProducer(stub)
                await late.say(reattach=pb.ProduceReattach(job_id=job.id, epoch=9))
                assert await late.error() == (grpc.StatusCode.NOT_FOUND, "GONE")
            wanted = pb.JobFilter(states=[FAILED])
            watched: Any = two.other.WatchJobs(pb.WatchJobsRequest(cursor=cursor, filter=wanted))
            async with asyncio.timeout(DEADLINE):
                while not (told := (await watched.read()).jobs):
                    pass
            assert [(it.id, it.detail) for it in told] == [(job.id, LOST)]


@pytest.mark.contract("C38", "F18")
async def test_a_registry_that_is_cut_off_from_the_store_sends_its_producers_to_the_other(postgres: Server) -> None:
    postgres.execute("CREATE ROLE cut_off LOGIN SUPERUSER")
    try:
        with postgres.named_database() as name:
            await is_cut_off_and_comes_back(postgres, postgres.url(name, "cut_off"), postgres.url(name))
    finally:
        postgres.execute("DROP ROLE cut_off")


async def is_cut_off_and_comes_back(postgres: Server, url: str, others: str) -> None:
    async with registries([url, others], lease=3.0) as two:
        first, elsewhere = RawProducer(two.one), RawProducer(two.other)
        await first.open()
        job = await first.start()
        await elsewhere.open(request_id="elsewhere")
        await until_known(two.one, (await elsewhere.start()).id)
        postgres.execute("ALTER ROLE cut_off NOLOGIN")
        postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'cut_off'")
        code, _ = await first.error()
        assert code is grpc.StatusCode.UNAVAILABLE
        second = RawProducer(two.other)
        await second.reattach(job.id)
        assert (await second.settle()).state == COMPLETED
        postgres.execute("ALTER ROLE cut_off LOGIN")

        async def is_back() -> bool:
            with suppress(grpc.aio.AioRpcError):
                return (await get(two.one, job.id)).state == COMPLETED
            return False

        await eventually(is_back, "the first registry shows what has become of the job")


async def until_known(stub: JobRegistryAsyncStub, job_id: str) -> None:
    """Wait until a registry shows a job, and knows that there is another registry where its producer is."""
    async with asyncio.timeout(DEADLINE):
        while (await get(stub, job_id)).waiting_on:
            await asyncio.sleep(0.05)


@pytest.mark.process
@pytest.mark.contract("C38", "C37", "C43", "F16", "F3")
async def test_the_job_of_a_killed_registry_goes_on_at_the_other_with_every_byte(
    postgres: Server, tmp_path: Path
) -> None:
    with postgres.database() as url:
        async with (
            registry_in(tmp_path, name="one", store={"url": url, **SHORT}) as one,
            registry_in(tmp_path, name="other", store={"url": url, **SHORT}) as other,
            proxied(one.address) as door,
            GrpcJobProducer(door.address) as producer,
            Jobs(other.address) as watching,
        ):

            async def start() -> str:
                return "nothing"

            job = await producer.open_job(JobSpec(kind="test", sources=("out",)), "r", epoch=1, start=start)
            text = b""

            async def follow() -> bytes:
                pieces = [piece async for piece in watching.read_output(job.job_id, follow=True)]
                assert all(piece.gap_bytes == 0 for piece in pieces)
                return b"".join(piece.data for piece in pieces)

            follower = asyncio.create_task(follow())
            for number in range(60):
                if number == 20:
                    await one.kill()
                    door.retarget(other.address)
                    door.cut()
                if number == 40:
                    await one.start()
                    door.retarget(one.address)
                    door.cut()
                line = f"line {number}\n".encode()
                job.write("out", line)
                text += line
                await asyncio.sleep(0.02)
            done = await job.settle(JobState.COMPLETED, "done")
            assert done.state is JobState.COMPLETED
            async with asyncio.timeout(DEADLINE):
                assert await follower == text
                assert (await watching.wait(job.job_id)).state is JobState.COMPLETED


@pytest.mark.process
@pytest.mark.contract("C38", "F3")
async def test_a_producer_that_dies_with_its_registry_is_given_up_by_the_other(
    postgres: Server, tmp_path: Path
) -> None:
    with postgres.database() as url:
        grace = {"grace": 1.0}
        async with (
            registry_in(tmp_path, name="one", store={"url": url, **SHORT}, producers=grace) as one,
            registry_in(tmp_path, name="other", store={"url": url, **SHORT}, producers=grace) as other,
            stub_of(one.address) as its_stub,
            stub_of(other.address) as stub,
        ):
            producer = RawProducer(its_stub)
            await producer.open()
            job = await producer.start()
            await until_known(stub, job.id)
            waiting = stub.WaitJob(pb.WaitJobRequest(job_id=job.id))
            await one.kill()
            async with asyncio.timeout(DEADLINE):
                lost = (await waiting).job
            assert (lost.state, lost.detail) == (FAILED, LOST)
