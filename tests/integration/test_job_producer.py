"""Producers whose registry vanishes, forgets and comes back: nothing is begun twice, told twice or lost (C32, C37)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fanfold.clients.job_output import BUFFER_BYTES, RESULT_PART_BYTES
from fanfold.clients.job_producer import GrpcJobProducer
from fanfold.clients.production import GrpcProduction
from fanfold.errors import (
    Aborted,
    FanfoldError,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from fanfold.model.job import JobSpec, JobState
from fanfold.v1 import job_pb2
from fanfold.v1 import job_registry_pb2 as pb
from support.scripted import Conversation, ScriptedRegistry, job_of, scripted_registry

SPEC = JobSpec(kind="audit", label="all", sources=("out",))
GONE = Unavailable("gone for a moment")


@pytest.fixture
async def registry() -> AsyncIterator[ScriptedRegistry]:
    async with scripted_registry() as up:
        yield up


@pytest.fixture
async def producer(registry: ScriptedRegistry) -> AsyncIterator[GrpcJobProducer]:
    async with GrpcJobProducer(registry.address) as up:
        yield up
        registry.end_all()


class Starts:
    """Counts how often a job was started."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self) -> str:
        self.count += 1
        return "process 1"


@asynccontextmanager
async def opening(
    producer: GrpcJobProducer, starts: Starts, *, epoch: int = 1
) -> AsyncIterator[asyncio.Task[GrpcProduction]]:
    """A job that is being registered while the block lasts."""
    async with asyncio.TaskGroup() as tasks:
        yield tasks.create_task(producer.open_job(SPEC, "r-1", epoch=epoch, start=starts, owner="alice"))


async def produced(
    registry: ScriptedRegistry, producer: GrpcJobProducer, starts: Starts | None = None
) -> tuple[GrpcProduction, Conversation]:
    """A registered job, and the stream on which it was registered."""
    async with opening(producer, starts or Starts()) as job:
        stream = await registry.next_registered("audit-1")
    return job.result(), stream


@pytest.mark.contract("C32")
async def test_a_job_is_begun_once_it_is_admitted_and_there_once_it_is_committed(
    registry: ScriptedRegistry, producer: GrpcJobProducer
) -> None:
    starts = Starts()
    async with opening(producer, starts, epoch=3) as job:
        stream = await registry.next_stream()
        told = (await stream.heard()).open
        assert (told.spec.kind, told.request_id, told.on_behalf_of, told.epoch) == ("audit", "r-1", "alice", 3)
        before = starts.count
        stream.admit("audit-7")
        started = (await stream.heard()).started
        assert (started.epoch, started.holds) == (3, "process 1")
        assert (before, starts.count) == (0, 1)
        assert not job.done()
        stream.commit("audit-7", 3)
    assert job.result().job_id == "audit-7"


@pytest.mark.contract("C32")
async def test_a_start_that_fails_is_told_to_the_registry_and_raised(
    registry: ScriptedRegistry, producer: GrpcJobProducer
) -> None:
    async def start() -> str:
        raise OSError("no such command")

    async with asyncio.TaskGroup() as tasks:
        job = tasks.create_task(_error_of(producer, start))
        stream = await registry.next_stream()
        assert (await stream.heard()).HasField("open")
        stream.admit("audit-1")
        assert (await stream.heard()).start_failed.reason == "no such command"
        await stream.ended()
        stream.break_off()
    assert isinstance(job.result(), OSError)


async def _error_of(producer: GrpcJobProducer, start: object) -> BaseException:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - the test looks at it
        await producer.open_job(SPEC, "r-1", epoch=1, start=start)  # type: ignore[arg-type]
    return raised.value


@pytest.mark.contract("C32", "C39")
@pytest.mark.parametrize("refusal", [ResourceExhausted("500 live jobs are the most"), Unavailable("not now")])
async def test_a_refusal_before_the_start_is_raised_as_it_is(
    registry: ScriptedRegistry, producer: GrpcJobProducer, refusal: FanfoldError
) -> None:
    starts = Starts()
    async with asyncio.TaskGroup() as tasks:
        job = tasks.create_task(_error_of(producer, starts))
        stream = await registry.next_stream()
        stream.break_off(refusal)
    assert type(job.result()) is type(refusal)
    assert refusal.message in str(job.result())
    assert not starts.count


async def test_a_registry_that_is_not_there_is_told_at_once() -> None:
    async with GrpcJobProducer("127.0.0.1:9") as producer:
        with pytest.raises(Unavailable):
            await producer.open_job(SPEC, "r-1", epoch=1, start=Starts())


@pytest.mark.contract("C32", "F6")
async def test_a_producer_that_misses_the_answer_asks_again_by_its_request(
    registry: ScriptedRegistry, producer: GrpcJobProducer
) -> None:
    starts = Starts()
    async with opening(producer, starts) as job:
        stream = await registry.next_stream()
        await stream.heard()
        stream.admit("audit-1")
        assert (await stream.heard()).HasField("started")
        stream.break_off(GONE)
        again = await registry.next_stream()
        assert (await again.heard()).open.request_id == "r-1"
        again.commit("audit-1")
    assert job.result().job_id == "audit-1"
    assert starts.count == 1


@pytest.mark.contract("C32")
async def test_a_job_that_was_not_registered_after_all_is_registered_under_another_number_and_not_begun_again(
    registry: ScriptedRegistry, producer: GrpcJobProducer
) -> None:
    starts = Starts()
    async with opening(producer, starts) as job:
        stream = await registry.next_stream()
        await stream.heard()
        stream.admit("audit-1")
        assert (await stream.heard()).HasField("started")
        stream.break_off(GONE)
        await registry.next_registered("audit-2")
    assert job.result().job_id == "audit-2"
    assert starts.count == 1


@pytest.mark.contract("C32")
async def test_a_job_that_a_former_epoch_registered_is_taken_over(
    registry: ScriptedRegistry, producer: GrpcJobProducer
) -> None:
    starts = Starts()
    async with opening(producer, starts, epoch=2) as job:
        stream = await registry.next_stream()
        assert (await stream.heard()).open.epoch == 2
        stream.commit("audit-1", 2)
    assert job.result().job_id == "audit-1"
    assert not starts.count


@pytest.mark.contract("C37", "F16")
async def test_a_registry_that_comes_back_is_sent_what_it_lacks(
    registry: ScriptedRegistry, producer: GrpcJobProducer
) -> None:
    production, stream = await produced(registry, producer)
    production.write("out", b"hello ")
    assert await stream.heard_output("out", 6) == {0: b"hello "}
    stream.break_off(GONE)
    production.write("out", b"world")
    again = await registry.next_attached("audit-1", ("out", 4))
    assert await again.heard_output("out", 11) == {4: b"o world"}


@pytest.mark.contract("C37", "F15")
async def test_what_a_bounded_buffer_could_not_hold_is_a_gap(
    registry: ScriptedRegistry, producer: GrpcJobProducer
) -> None:
    production, stream = await produced(registry, producer)
    stream.break_off(GONE)
    production.write("out", b"a" * 1_000)
    production.write("out", b"b" * BUFFER_BYTES)
    again = await registry.next_attached("audit-1", ("out", 0))
    chunks = await again.heard_output("out", BUFFER_BYTES + 1_000)
    assert min(chunks) == 1_000
    assert b"".join(chunks[offset] for offset in sorted(chunks)) == b"b" * BUFFER_BYTES


@pytest.mark.contract("C37")
async def test_a_producer_that_takes_over_goes_on_behind_what_is_kept(
    registry: ScriptedRegistry, producer: GrpcJobProducer
) -> None:
    production = producer.reattach("audit-1", epoch=2)
    production.write("out", b"second")
    stream = await registry.next_attached("audit-1", ("out", 500), epoch=2)
    assert await stream.heard_output("out", 506) == {500: b"second"}
    production.write("out", b"!")
    assert await stream.heard_output("out", 507) == {506: b"!"}


async def test_the_progress_line_is_told_again_to_a_registry_that_comes_back(
    registry: ScriptedRegistry, producer: GrpcJobProducer
) -> None:
    production, stream = await produced(registry, producer)
    production.tell_progress("1/3")
    production.tell_progress("2/3")
    assert (await stream.heard()).output.progress == "2/3"
    stream.break_off(GONE)
    again = await registry.next_attached("audit-1")
    assert (await again.heard()).output.progress == "2/3"


@pytest.mark.contract("C36", "F6")
async def test_a_settlement_is_told_until_it_is_kept(registry: ScriptedRegistry, producer: GrpcJobProducer) -> None:
    production, stream = await produced(registry, producer)
    result = bytes(range(256)) * (RESULT_PART_BYTES // 256) + b"rest"
    production.write("out", b"last words")
    async with asyncio.TaskGroup() as tasks:
        settling = tasks.create_task(production.settle(JobState.COMPLETED, "well", result))
        assert await stream.heard_output("out", 10) == {0: b"last words"}
        assert (await stream.heard()).settled.more
        stream.break_off(GONE)
        again = await registry.next_attached("audit-1", ("out", 10))
        parts = [(await again.heard()).settled for _ in range(2)]
        assert [part.more for part in parts] == [True, False]
        assert b"".join(part.result for part in parts) == result
        assert {(part.state, part.detail) for part in parts} == {(job_pb2.JOB_STATE_COMPLETED, "well")}
        assert not settling.done()
        again.say(kept=pb.ProduceSettlementKept(job=job_of("audit-1", job_pb2.JOB_STATE_FAILED, detail="first")))
    assert (settling.result().state, settling.result().detail) == (JobState.FAILED, "first")


@pytest.mark.contract("C36", "C41", "F9")
async def test_a_registry_that_refuses_for_a_while_is_asked_again_after_it(
    registry: ScriptedRegistry, producer: GrpcJobProducer
) -> None:
    production, stream = await produced(registry, producer)
    now = asyncio.get_running_loop().time
    async with asyncio.TaskGroup() as tasks:
        settling = tasks.create_task(_settle(production, b"much"))
        for _ in range(2):
            assert (await stream.heard()).settled.result == b"much"
            refused_at = now()
            stream.break_off(ResourceExhausted("much is under way", reason="RESULTS_UNDER_WAY", retry_delay=0.5))
            stream = await registry.next_attached("audit-1")
            assert now() - refused_at >= 0.5
        assert (await stream.heard()).settled.result == b"much"
        stream.say(kept=pb.ProduceSettlementKept(job=job_of("audit-1", job_pb2.JOB_STATE_COMPLETED)))
    assert settling.result() is JobState.COMPLETED


@pytest.mark.contract("C36", "C39")
async def test_a_result_that_is_too_large_is_refused_and_the_job_can_be_settled_without_it(
    registry: ScriptedRegistry, producer: GrpcJobProducer
) -> None:
    production, stream = await produced(registry, producer)
    async with asyncio.TaskGroup() as tasks:
        refused = tasks.create_task(_settle(production, b"much"))
        assert (await stream.heard()).settled.result == b"much"
        stream.break_off(ResourceExhausted("3 bytes are the most", reason="RESULT_TOO_LARGE"))
        again = await registry.next_attached("audit-1")
    assert isinstance(refused.result(), ResourceExhausted)
    async with asyncio.TaskGroup() as tasks:
        settled = tasks.create_task(_settle(production, None))
        assert not (await again.heard()).settled.HasField("result")
        again.say(kept=pb.ProduceSettlementKept(job=job_of("audit-1", job_pb2.JOB_STATE_COMPLETED)))
    assert settled.result() is JobState.COMPLETED


async def _settle(production: GrpcProduction, result: bytes | None) -> JobState | FanfoldError:
    try:
        return (await production.settle(JobState.COMPLETED, "", result)).state
    except FanfoldError as error:
        return error


@pytest.mark.contract("C37")
async def test_no_more_is_sent_than_there_is_credit_for_and_the_end_comes_after_all_of_it(
    registry: ScriptedRegistry, producer: GrpcJobProducer
) -> None:
    async with opening(producer, Starts()) as job:
        stream = await registry.next_stream()
        await stream.heard()
        stream.admit("audit-1")
        await stream.heard()
        stream.say(committed=pb.ProduceCommitted(job=job_of("audit-1"), epoch=1))
    production = job.result()
    production.write("out", b"0123456789")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(production.settle(JobState.COMPLETED))
        stream.grant(4)
        assert await stream.heard_output("out", 4) == {0: b"0123"}
        stream.grant(100)
        assert await stream.heard_output("out", 10) == {4: b"456789"}
        assert (await stream.heard()).HasField("settled")
        stream.say(kept=pb.ProduceSettlementKept(job=job_of("audit-1", job_pb2.JOB_STATE_COMPLETED)))


@pytest.mark.contract("C38")
async def test_the_first_wish_to_stop_is_told_once(registry: ScriptedRegistry, producer: GrpcJobProducer) -> None:
    production, stream = await produced(registry, producer)
    asked = asyncio.create_task(production.stop_asked())
    stream.say(cancel=pb.ProduceCancel(reason="enough"))
    assert await asked == "enough"
    stream.break_off(GONE)
    again = await registry.next_stream()
    await again.heard()
    again.commit("audit-1", 1, state=job_pb2.JOB_STATE_STOPPING, stop_reason="enough, I said")
    again.say(cancel=pb.ProduceCancel(reason="really"))
    production.write("out", b"x")
    await again.heard_output("out", 1)
    assert await production.stop_asked() == "enough"


@pytest.mark.contract("C38")
async def test_a_wish_to_stop_that_was_kept_while_the_producer_was_away_is_told(
    registry: ScriptedRegistry, producer: GrpcJobProducer
) -> None:
    production, stream = await produced(registry, producer)
    stream.break_off(GONE)
    again = await registry.next_stream()
    await again.heard()
    again.commit("audit-1", 1, state=job_pb2.JOB_STATE_STOPPING, stop_reason="enough")
    async with asyncio.timeout(5):
        assert await production.stop_asked() == "enough"


@pytest.mark.contract("C38")
@pytest.mark.parametrize("error", [NotFound("gone", reason="GONE"), Aborted("taken over")])
async def test_a_producer_is_told_that_the_job_is_not_its_own_any_more(
    registry: ScriptedRegistry, producer: GrpcJobProducer, error: FanfoldError
) -> None:
    production, stream = await produced(registry, producer)
    stream.break_off(GONE)
    again = await registry.next_stream()
    again.break_off(error)
    for waiting in (production.stop_asked(), production.settle(JobState.COMPLETED)):
        with pytest.raises(type(error)):
            async with asyncio.timeout(5):
                await waiting


@pytest.mark.contract("C36", "C40")
@pytest.mark.parametrize("error", [PermissionDenied("not a producer"), Unauthenticated(reason="REVOKED")])
async def test_a_producer_whose_credentials_are_taken_back_for_a_while_goes_on(
    registry: ScriptedRegistry, producer: GrpcJobProducer, error: FanfoldError
) -> None:
    production, stream = await produced(registry, producer)
    stream.break_off(error)
    (await registry.next_stream()).break_off(error)
    async with asyncio.TaskGroup() as tasks:
        settling = tasks.create_task(production.settle(JobState.COMPLETED))
        again = await registry.next_attached("audit-1")
        assert (await again.heard()).HasField("settled")
        again.say(kept=pb.ProduceSettlementKept(job=job_of("audit-1", job_pb2.JOB_STATE_COMPLETED)))
    assert settling.result().state is JobState.COMPLETED


async def test_a_job_that_is_let_go_is_left_as_it_is_with_all_that_was_written(
    registry: ScriptedRegistry, producer: GrpcJobProducer
) -> None:
    production, stream = await produced(registry, producer)
    production.write("out", b"so far")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(production.let_go())
        assert await stream.heard_output("out", 6) == {0: b"so far"}
        await stream.ended()
        stream.break_off()


async def test_a_registry_that_does_not_listen_holds_up_nobody_who_lets_a_job_go(
    registry: ScriptedRegistry, producer: GrpcJobProducer
) -> None:
    production, stream = await produced(registry, producer)
    stream.break_off(GONE)
    await registry.next_stream()
    async with asyncio.timeout(2):
        await production.let_go()


@pytest.mark.contract("F22")
async def test_a_producer_is_not_held_up_by_a_registry_that_does_not_read(
    registry: ScriptedRegistry, producer: GrpcJobProducer
) -> None:
    production, stream = await produced(registry, producer)
    for _ in range(400):
        production.write("out", b"x" * 65_536)
        await asyncio.sleep(0)
    chunks = await stream.heard_output("out", 400 * 65_536)
    assert max(offset + len(data) for offset, data in chunks.items()) == 400 * 65_536
    assert sum(map(len, chunks.values())) < 400 * 65_536
