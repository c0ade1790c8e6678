"""The job registry over gRPC: what producers, readers and watchers meet, also when streams break and it restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from fanfold.clients.job_registry import JobRegistryClient
from fanfold.v1 import job_pb2
from fanfold.v1 import job_registry_pb2 as pb
from job_registry import keeping, output
from support.journals import eventually
from support.mesh import DEADLINE
from support.registries import COMPLETED, FAILED, KILLED, RawProducer, reason_of, registry_alone, stub_of

pytestmark = pytest.mark.contract("C44")


class Registry:
    """A registry that can be restarted at its address; its file is what stays."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._folder = folder
        self._settings = settings
        self._stack = AsyncExitStack()
        self.address = ""
        self.stub: Any = None

    async def __aenter__(self) -> Registry:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def restart(self) -> None:
        """Stop it, and start it again at the same address."""
        await self._stack.aclose()
        await self._start()

    async def drain(self) -> None:
        await self._serving.drain(10)

    async def _start(self) -> None:
        settings = {**self._settings, **({"listen": self.address} if self.address else {})}
        self._serving = await self._stack.enter_async_context(registry_alone(self._folder, **settings))
        self.address = self._serving.address
        self.stub = await self._stack.enter_async_context(stub_of(self.address))

    def producer(self) -> RawProducer:
        return RawProducer(self.stub)

    async def get(self, job_id: str) -> job_pb2.Job:
        job: job_pb2.Job = (await self.stub.GetJob(pb.GetJobRequest(job_id=job_id))).job
        return job

    async def read(self, job_id: str, offset: int = 0, *, follow: bool = False) -> list[tuple[int, bytes, int]]:
        asked = pb.ReadJobOutputRequest(job_id=job_id, offset=offset, follow=follow)
        async with asyncio.timeout(DEADLINE):
            return [(it.offset, it.data, it.gap_bytes) async for it in self.stub.ReadJobOutput(asked)]


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    async with Registry(tmp_path) as started:
        yield started


async def failure(call: Any) -> tuple[grpc.StatusCode, str]:
    """What a call fails with, and the reason."""
    try:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code(), reason_of(error)
    raise AssertionError("it did not fail")


@pytest.mark.contract("C32", "C36", "C37")
async def test_a_job_lives_from_its_registration_to_its_result(registry: Registry) -> None:
    producer = registry.producer()
    assert await producer.open("web-search", label="find it", parent="session-1") == "web-search-1"
    assert await failure(registry.stub.GetJob(pb.GetJobRequest(job_id="web-search-1"))) == (
        grpc.StatusCode.NOT_FOUND,
        "NOT_FOUND",
    )
    job = await producer.start()
    assert (job.label, job.parent, job.owner, job.state) == ("find it", "session-1", "anonymous", 1)
    await producer.progress("half of it")
    await producer.write("ж€😀".encode())
    assert await failure(registry.stub.GetJobResult(pb.GetJobResultRequest(job_id=job.id))) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "NOT_SETTLED",
    )
    assert await failure(registry.stub.DeleteJob(pb.DeleteJobRequest(job_id=job.id))) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "NOT_SETTLED",
    )
    waiting = registry.stub.WaitJob(pb.WaitJobRequest(job_id=job.id))  # it begins at once
    done = await producer.settle(COMPLETED, "found", b"the result")
    assert await producer.error() == (grpc.StatusCode.OK, "")
    assert (await waiting).job == done == await registry.get(job.id)
    assert (done.state, done.detail, done.progress, done.has_result) == (COMPLETED, "found", "half of it", True)
    assert done.settled_at.ToNanoseconds() >= done.created_at.ToNanoseconds() > 0
    assert await registry.read(job.id) == [(0, "ж€😀".encode(), 0)]
    for _ in range(2):  # it stays readable
        parts = [it.data async for it in registry.stub.GetJobResult(pb.GetJobResultRequest(job_id=job.id))]
        assert parts == [b"the result"]
    for _ in range(2):
        await registry.stub.DeleteJob(pb.DeleteJobRequest(job_id=job.id))
    assert (await failure(registry.stub.GetJob(pb.GetJobRequest(job_id=job.id))))[0] is grpc.StatusCode.NOT_FOUND


@pytest.mark.contract("C41")
async def test_producers_are_told_by_statuses_and_reasons_what_went_wrong(registry: Registry) -> None:
    first = registry.producer()
    await first.open()
    job = await first.start()
    second = registry.producer()
    await second.reattach(job.id, epoch=2)
    assert await first.error() == (grpc.StatusCode.ABORTED, "SUPERSEDED")
    stale = registry.producer()
    await stale.say(reattach=pb.ProduceReattach(job_id=job.id, epoch=1))
    assert await stale.error() == (grpc.StatusCode.ABORTED, "STALE_EPOCH")
    unknown = registry.producer()
    await unknown.say(reattach=pb.ProduceReattach(job_id="test-99"))
    assert await unknown.error() == (grpc.StatusCode.NOT_FOUND, "NOT_FOUND")
    early = registry.producer()
    await early.say(started=pb.ProduceStarted())
    assert await early.error() == (grpc.StatusCode.INVALID_ARGUMENT, "OUT_OF_TURN")
    nothing = registry.producer()
    await nothing.say()
    assert await nothing.error() == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
    running = registry.producer()
    await running.reattach(job.id, epoch=2)
    await running.say(settled=pb.ProduceSettled(state=job_pb2.JOB_STATE_RUNNING))
    assert await running.error() == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
    many = registry.producer()
    await many.reattach(job.id, epoch=2)
    await many.say(output=pb.ProduceOutput(chunks=[pb.OutputChunk(source="out")] * 1025))
    assert await many.error() == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
    assert (await registry.get(job.id)).state == job_pb2.JOB_STATE_RUNNING


@pytest.mark.contract("C41")
async def test_a_filter_that_says_the_same_many_times_says_it_once(registry: Registry) -> None:
    producer = registry.producer()
    await producer.open()
    job = await producer.start()
    repeated = pb.JobFilter(states=[job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_RUNNING] * 300_000)
    listed = await registry.stub.ListJobs(pb.ListJobsRequest(filter=repeated))
    assert [each.id for each in listed.jobs] == [job.id]


@pytest.mark.contract("C38", "C42", "F3")
async def test_a_producer_that_vanishes_is_waited_for_and_then_given_up(tmp_path: Path) -> None:
    async with Registry(tmp_path, producers={"grace": 1.0}) as registry:
        producer = registry.producer()
        await producer.open()
        job = await producer.start()
        producer.call.cancel()
        async with asyncio.timeout(DEADLINE):
            while (waiting_on := (await registry.get(job.id)).waiting_on) == "":
                await asyncio.sleep(0.01)
        assert waiting_on.startswith("its producer, which has been away for ")
        lost = (await registry.stub.WaitJob(pb.WaitJobRequest(job_id=job.id))).job
        assert (lost.state, lost.detail, lost.waiting_on) == (FAILED, "producer lost", "")
        late = registry.producer()
        await late.say(reattach=pb.ProduceReattach(job_id=job.id))
        assert await late.error() == (grpc.StatusCode.NOT_FOUND, "GONE")


@pytest.mark.contract("C38")
async def test_a_stop_that_is_not_obeyed_ends_the_job_and_the_stream(tmp_path: Path) -> None:
    async with Registry(tmp_path, producers={"stop_deadline": 0.5}) as registry:
        producer = registry.producer()
        await producer.open()
        job = await producer.start(holds="process 7")
        stopping = (await registry.stub.CancelJob(pb.CancelJobRequest(job_id=job.id, reason="enough"))).job
        assert (stopping.state, stopping.stop_reason) == (job_pb2.JOB_STATE_STOPPING, "enough")
        assert (await producer.told_of("cancel")).reason == "enough"
        assert await producer.error() == (grpc.StatusCode.NOT_FOUND, "GONE")
        failed = await registry.get(job.id)
        assert (failed.state, failed.stop_reason) == (FAILED, "enough")
        assert failed.detail.endswith("process 7")


@pytest.mark.contract("C37", "F16", "F22")
async def test_a_follower_gets_every_byte_once_in_order_over_its_own_reconnects(registry: Registry) -> None:
    producer = registry.producer()
    await producer.open()
    job = await producer.start()
    text = "".join(f"line {number} ж€😀\n" for number in range(2000)).encode()

    async def produce() -> None:
        for start in range(0, len(text), 1000):
            await producer.write(text[start : start + 1000], start)
            await asyncio.sleep(0)
        await producer.settle()

    producing = asyncio.create_task(produce())
    got, ended = b"", False
    while not ended:
        asked = pb.ReadJobOutputRequest(job_id=job.id, offset=len(got), follow=True)
        call = registry.stub.ReadJobOutput(asked)
        count = 0
        async for piece in call:
            assert (piece.offset, piece.gap_bytes) == (len(got), 0)
            piece.data.decode()
            got += piece.data
            count += 1
            if count == 3:
                call.cancel()
                break
        else:
            ended = True
    await producing
    assert got == text


@pytest.mark.contract("C37", "F22", "F15")
async def test_a_reader_that_stalls_holds_nobody_up_and_is_told_what_it_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "WHOLE_SECONDS", 0.1)
    monkeypatch.setattr(keeping, "CUT_SECONDS", 0.1)
    async with Registry(tmp_path, output={"live_bytes": 100_000, "settled_bytes": 1000}) as registry:
        producer = registry.producer()
        await producer.open()
        job = await producer.start()
        stalled = registry.stub.ReadJobOutput(pb.ReadJobOutputRequest(job_id=job.id, follow=True))
        await producer.write(b"first")
        assert (await stalled.read()).data == b"first"
        size = 20_000_000  # more than what fits into the buffers on the way to the reader
        async with asyncio.timeout(DEADLINE):
            for offset in range(5, size, 500_000):
                await producer.write(b"x" * 500_000, offset)
            done = await producer.settle()
        assert done.sources[0].lossy
        position, gaps = 5, 0
        while (piece := await stalled.read()) is not grpc.aio.EOF:
            assert piece.offset == position + piece.gap_bytes
            position, gaps = piece.offset + len(piece.data), gaps + piece.gap_bytes
        assert position == done.sources[0].total_bytes
        assert gaps > 0

        async def is_cut() -> bool:
            (source,) = (await registry.get(job.id)).sources
            return bool(source.total_bytes - source.earliest_offset == 1000)

        await eventually(is_cut, "only the end of the output is kept")
        ((offset, data, gap),) = await registry.read(job.id)
        assert (offset, len(data), gap) == (position - 1000, 1000, position - 1000)


@pytest.mark.contract("C37", "F16", "F6")
async def test_output_and_followers_get_over_a_restart_of_the_registry(tmp_path: Path) -> None:
    async with Registry(tmp_path) as registry:
        producer = registry.producer()
        await producer.open()
        job = await producer.start()
        await producer.write(b"before, ")
        await until_async(registry, job.id, 8)
        await registry.restart()
        assert await registry.read(job.id) == [(0, b"before, ", 0)]
        following = asyncio.create_task(registry.read(job.id, 4, follow=True))
        again = registry.producer()
        committed = await again.reattach(job.id)
        assert committed.job.sources[0].total_bytes == 8
        await again.write(b", after", 6)  # it does not know how much was kept
        await again.settle()
        assert b"".join(data for _, data, _ in await following) == b"re, after"
        await registry.restart()
        assert await registry.read(job.id) == [(0, b"before, after", 0)]


async def until_async(registry: Registry, job_id: str, total: int) -> None:
    async with asyncio.timeout(DEADLINE):
        while (await registry.get(job_id)).sources[0].total_bytes < total:
            await asyncio.sleep(0.01)


@pytest.mark.contract("C37")
async def test_sources_are_read_by_name_and_by_default_the_first_one(registry: Registry) -> None:
    producer = registry.producer()
    await producer.open(sources=["err", "out"])
    job = await producer.start()
    await producer.write(b"to out", source="out")
    await producer.settle()
    for source, data in (("", []), ("err", []), ("out", [b"to out"])):
        asked = pb.ReadJobOutputRequest(job_id=job.id, source=source, follow=True)
        assert [it.data async for it in registry.stub.ReadJobOutput(asked)] == data
    wrong = registry.stub.ReadJobOutput(pb.ReadJobOutputRequest(job_id=job.id, source="log"))
    assert await failure(wrong) == (grpc.StatusCode.NOT_FOUND, "NO_SUCH_SOURCE")
    beyond = registry.stub.ReadJobOutput(pb.ReadJobOutputRequest(job_id=job.id, source="out", offset=99))
    assert [it async for it in beyond] == []


async def test_a_wait_that_takes_too_long_gives_the_job_as_it_is(registry: Registry) -> None:
    producer = registry.producer()
    await producer.open()
    job = await producer.start()
    asked = pb.WaitJobRequest(job_id=job.id, timeout=Duration(nanos=200_000_000))
    assert (await registry.stub.WaitJob(asked)).job.state == job_pb2.JOB_STATE_RUNNING
    wrong = pb.WaitJobRequest(job_id=job.id, timeout=Duration(seconds=-1))
    assert (await failure(registry.stub.WaitJob(wrong)))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def registered(registry: Registry, count: int, first: int = 0) -> list[RawProducer]:
    producers = []
    for number in range(first, first + count):
        producer = registry.producer()
        await producer.open(request_id=f"r{number}", label=f"label {number % 2}")
        await producer.start()
        producers.append(producer)
    return producers


async def test_pages_are_stable_while_jobs_come_and_end(registry: Registry) -> None:
    producers = await registered(registry, 5)
    seen: list[str] = []
    token = ""
    for turn in range(3):
        page = await registry.stub.ListJobs(pb.ListJobsRequest(page_size=2, page_token=token))
        seen += [job.id for job in page.jobs]
        token = page.next_page_token
        await producers[turn].settle()
        await registered(registry, 1, first=10 + turn)
    assert seen == ["test-5", "test-4", "test-3", "test-2", "test-1"]
    assert token == ""
    wanted = pb.JobFilter(states=[COMPLETED], label="label 0")
    page = await registry.stub.ListJobs(pb.ListJobsRequest(filter=wanted))
    assert [job.id for job in page.jobs] == ["test-3", "test-1"]
    wrong = registry.stub.ListJobs(pb.ListJobsRequest(page_token="x"))
    assert (await failure(wrong))[0] is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.contract("F23")
async def test_each_settlement_is_told_once_for_a_cursor_also_over_restarts(tmp_path: Path) -> None:
    async with Registry(tmp_path) as registry:
        settled: list[str] = []
        cursor = ""

        async def watch(until_settled: int) -> None:
            nonlocal cursor
            wanted = pb.JobFilter(states=[COMPLETED, KILLED, FAILED])
            call = registry.stub.WatchJobs(pb.WatchJobsRequest(cursor=cursor, filter=wanted))
            async with asyncio.timeout(DEADLINE):
                while not cursor or len(settled) < until_settled:
                    told = await call.read()
                    settled.extend(job.id for job in told.jobs)
                    cursor = told.cursor
            call.cancel()

        await watch(0)
        producers = await registered(registry, 6)
        await producers[3].settle()
        await producers[0].settle()
        await watch(2)
        await producers[1].settle()  # nobody watches
        await registry.restart()
        for number in (2, 4):
            again = registry.producer()
            await again.reattach(f"test-{number + 1}")
            await again.settle()
        await registry.stub.DeleteJob(pb.DeleteJobRequest(job_id="test-3"))
        await watch(5)
        await registry.restart()
        again = registry.producer()
        await again.reattach("test-6")
        await again.settle()
        await watch(6)
    assert settled == ["test-4", "test-1", "test-2", "test-3", "test-5", "test-6"]


@pytest.mark.contract("F23", "C39")
async def test_a_watcher_whose_cursor_is_too_old_is_told_so_and_goes_on_from_a_list(tmp_path: Path) -> None:
    async with Registry(tmp_path, retention={"settled_jobs": 1}, store={"path": str(tmp_path / "x"), "sweep": 0.1}) as (
        registry
    ):
        first = await registry.stub.WatchJobs(pb.WatchJobsRequest()).read()
        for producer in await registered(registry, 3):
            await producer.settle()
        async with asyncio.timeout(DEADLINE):
            while len((await registry.stub.ListJobs(pb.ListJobsRequest())).jobs) > 1:
                await asyncio.sleep(0.02)
        await registry.restart()  # a registry remembers the last changes longer than its store
        late = registry.stub.WatchJobs(pb.WatchJobsRequest(cursor=first.cursor))
        assert await failure(late) == (grpc.StatusCode.OUT_OF_RANGE, "CHANGES_GONE")
        page = await registry.stub.ListJobs(pb.ListJobsRequest())
        told = await registry.stub.WatchJobs(pb.WatchJobsRequest(cursor=page.watch_cursor)).read()
        assert list(told.jobs) == []
        wrong = registry.stub.WatchJobs(pb.WatchJobsRequest(cursor="x"))
        assert (await failure(wrong))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_cursor_of_another_store_is_out_of_range(tmp_path: Path) -> None:
    cursors = []
    for name in ("one", "two"):
        async with Registry(tmp_path / name) as registry:
            cursors.append((await registry.stub.WatchJobs(pb.WatchJobsRequest()).read()).cursor)
            if len(cursors) == 2:
                foreign = registry.stub.WatchJobs(pb.WatchJobsRequest(cursor=cursors[0]))
                assert (await failure(foreign))[0] is grpc.StatusCode.OUT_OF_RANGE


async def test_progress_is_watched_and_kept(registry: Registry) -> None:
    call = registry.stub.WatchJobs(pb.WatchJobsRequest())
    await call.read()
    (producer,) = await registered(registry, 1)
    lines: list[str] = []
    for number in range(3):
        await producer.progress(f"{number} of 3")
        async with asyncio.timeout(DEADLINE):
            while f"{number} of 3" not in lines:
                lines += [job.progress for job in (await call.read()).jobs]
    await registry.restart()
    assert (await registry.get("test-1")).progress == "2 of 3"


@pytest.mark.contract("C43")
async def test_a_registry_that_drains_sends_everybody_to_its_next_life_at_once(tmp_path: Path) -> None:
    async with Registry(tmp_path) as registry:
        (producer,) = await registered(registry, 1)
        await producer.write(b"to the end")
        await until_async(registry, "test-1", 10)
        calls = [
            registry.stub.ReadJobOutput(pb.ReadJobOutputRequest(job_id="test-1", offset=10, follow=True)),
            registry.stub.WaitJob(pb.WaitJobRequest(job_id="test-1")),
            registry.stub.WatchJobs(pb.WatchJobsRequest(cursor="")),
        ]
        failing = [asyncio.create_task(failure(call)) for call in calls]
        await asyncio.sleep(0.2)  # so that they are there; they would be refused in the same way if not
        async with asyncio.timeout(5):
            await registry.drain()
        assert await producer.error() == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert {await each for each in failing} == {(grpc.StatusCode.UNAVAILABLE, "DRAINING")}
        await registry.restart()
        again = registry.producer()
        assert (await again.reattach("test-1")).job.sources[0].total_bytes == 10


async def test_the_registry_tells_its_numbers(registry: Registry) -> None:
    producers = await registered(registry, 3)
    await producers[0].settle(FAILED)
    producers[1].call.cancel()
    await producers[2].write(b"12345")
    await registry.stub.CancelJob(pb.CancelJobRequest(job_id="test-3"))

    async def scrape() -> list[str]:
        reader, writer = await asyncio.open_connection(registry._serving.metrics.host, registry._serving.metrics.port)
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        text = (await reader.read()).decode()
        writer.close()
        return text.splitlines()

    wanted = {
        'fanfold_registry_jobs{kind="test",state="running"} 1.0',
        'fanfold_registry_jobs{kind="test",state="stopping"} 1.0',
        'fanfold_registry_jobs_registered_total{kind="test"} 3.0',
        'fanfold_registry_jobs_settled_total{kind="test",state="failed"} 1.0',
        'fanfold_registry_job_duration_seconds_count{kind="test"} 1.0',
        'fanfold_registry_producers{state="there"} 1.0',
        'fanfold_registry_producers{state="away"} 1.0',
        "fanfold_registry_output_bytes_total 5.0",
        "fanfold_registry_output_held_bytes 5.0",
        "fanfold_registry_output_dropped_bytes_total 0.0",
    }
    async with asyncio.timeout(DEADLINE):
        while missing := wanted - set(await scrape()):
            assert missing <= wanted
            await asyncio.sleep(0.05)


async def test_the_client_follows_a_job_of_a_raw_producer(registry: Registry) -> None:
    (producer,) = await registered(registry, 1)
    await producer.write(b"hello")
    async with JobRegistryClient(registry.address) as client:
        async with aclosing(client.read_output("test-1", follow=True)) as pieces:
            assert (await anext(pieces)).data == b"hello"
        assert (await client.cancel_job("test-1", "enough")).stop_reason == "enough"
        await producer.told_of("cancel")
        assert (await producer.settle(KILLED)).state == KILLED
        assert (await client.wait_job("test-1")).state.value == "killed"
