"""`Coordinator.Run` over real services: bad input, cancellation, full and lost nodes (C9, C10, C12, C41)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import grpc.aio
import pytest

from coordinator.placement.node import KnownNode
from fanfold import Mesh
from fanfold.errors import Aborted, InvalidArgument, ResourceExhausted
from fanfold.model.run import EventDetail
from fanfold.model.step import StepEnded, StepEvent, StepProgressed, StepStarted
from fanfold.ports import Rejection, RejectionReason
from fanfold.rpc.channels import open_channel
from fanfold.rpc.status import from_rpc_error
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1 import run_pb2, step_pb2
from fanfold.v1.coordinator_pb2_grpc import CoordinatorStub
from support.mesh import DEADLINE, RunningMesh, coordinator_alone, running_mesh, until, until_ready

pytestmark = pytest.mark.process


def step(task_id: str, agent: str = "noop", prompt: str = "x") -> dict[str, str]:
    return {"task_id": task_id, "agent": agent, "description": "d", "prompt": prompt}


def message(task_id: str, agent: str = "noop", prompt: str = "x") -> step_pb2.AgentStepSpec:
    return step_pb2.AgentStepSpec(task_id=task_id, agent=agent, description="d", prompt=prompt)


OPEN = pb.RunRequest(open=pb.RunOpen(parallel=pb.ParallelRun()))


def steps(*messages: step_pb2.AgentStepSpec) -> pb.RunRequest:
    return pb.RunRequest(steps=pb.StepBatch(steps=messages))


async def raw_run(running: RunningMesh, requests: Iterable[pb.RunRequest]) -> list[run_pb2.RunEvent]:
    """The events of a run, from hand-made requests."""

    async def stream() -> AsyncIterator[pb.RunRequest]:
        for request in requests:
            yield request

    async with open_channel(running.coordinator.address) as channel:
        call = CoordinatorStub(channel).Run(stream())
        try:
            return [event async for response in call for event in response.events]
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningMesh]:
    settings = {"limits": {"steps": 5000, "prompt_bytes": 100_000, "step_bytes": 4_000_000}}
    async with running_mesh(tmp_path, coordinator={**settings, "placement": {"agent_unknown": 0.2}}) as up:
        yield up


@pytest.mark.contract("C12", "C41", "F20")
@pytest.mark.parametrize(
    ("requests", "field", "told"),
    [
        ([], "open", "is required"),
        ([steps(message("a"))], "open", "must be sent before all else"),
        ([OPEN, OPEN], "open", "must be sent once"),
        ([pb.RunRequest(open=pb.RunOpen())], "open.kind", "is required"),
        ([OPEN, steps(message(""))], "steps[0].task_id", "must not be empty"),
        ([OPEN, steps(message("a")), steps(message("b"), message("a"))], "steps[2].task_id", "task id of steps[0]"),
        ([OPEN, steps(message("a"), message("b", prompt="x" * 100_001))], "steps[1].prompt", "at most 100,000 bytes"),
        ([OPEN, steps(message("a", prompt="é" * 50_001))], "steps[0].prompt", "not 100,002"),
        ([OPEN, steps(*(message(str(n)) for n in range(5001)))], "steps", "at most 5,000 steps (limits.steps)"),
        (
            [pb.RunRequest(open=pb.RunOpen(parallel=pb.ParallelRun(), request_id="x" * 129))],
            "open.request_id",
            "at most 128 characters",
        ),
    ],
)
async def test_a_wrong_request_is_refused_by_field_and_limit_and_starts_nothing(
    running: RunningMesh, requests: list[pb.RunRequest], field: str, told: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await raw_run(running, requests)
    assert caught.value.violations[0].field == field
    assert told in caught.value.violations[0].description
    assert [view.steps_in_flight for view in await running.mesh.nodes()] == [0]


@pytest.mark.contract("C20", "C41")
async def test_a_schema_that_cannot_be_used_is_refused_before_anything_starts(running: RunningMesh) -> None:
    bad = {**step("b"), "output_schema": {"type": "nonsense"}}
    with pytest.raises(InvalidArgument) as caught:
        await running.mesh.parallel([step("a"), bad])
    assert caught.value.violations[0].field == "steps[1].output_schema"


@pytest.mark.contract("C41", "F11")
async def test_a_request_that_breaks_off_starts_nothing(running: RunningMesh, tmp_path: Path) -> None:
    whole = steps(message("a", "shell", "touch started"))
    too_large = steps(message("b", prompt="x" * 17_000_000))
    with pytest.raises(ResourceExhausted) as caught:
        await raw_run(running, [OPEN, whole, too_large])
    assert caught.value.reason == "MESSAGE_TOO_LARGE"
    assert (await running.mesh.parallel([step("c")]))[0].success  # whatever was to happen has happened
    assert not (tmp_path / "started").exists()


@pytest.mark.contract("C39", "C41")
async def test_a_request_that_is_refused_while_it_is_sent_is_told_why(tmp_path: Path) -> None:
    async with running_mesh(tmp_path, coordinator={"limits": {"run_bytes": 3_000_000}}) as running:
        for _ in range(5):
            with pytest.raises(InvalidArgument, match=r"limits\.run_bytes"):
                await running.mesh.parallel([step(str(n), prompt="x" * 1_000_000) for n in range(30)])


@pytest.mark.contract("C12")
async def test_nothing_in_nothing_out(running: RunningMesh) -> None:
    result = await running.mesh.parallel([])
    assert list(result) == []
    assert result.outcomes == ()
    assert result.budget is None


@pytest.mark.contract("C12")
async def test_outcomes_read_like_mappings_and_keep_the_order(running: RunningMesh) -> None:
    given = [step(str(n), "noop" if n % 10 else "read", f"prompt {n}") for n in range(2000)]
    result = await running.mesh.parallel(given)
    assert [o["task_id"] for o in result] == [str(n) for n in range(2000)]
    assert [o["success"] for o in result] == [bool(n % 10) for n in range(2000)]
    assert result[1]["output"] == "prompt 1"
    assert [o.agent for o in result[:2]] == ["read", "noop"]


@pytest.mark.contract("C11")
async def test_detail_says_which_events_come_and_their_numbers_are_the_same_for_all(running: RunningMesh) -> None:
    async def kinds(detail: str) -> list[str]:
        opening = pb.RunOpen(parallel=pb.ParallelRun(), events=run_pb2.EventDetail.Value(f"EVENT_DETAIL_{detail}"))
        events = await raw_run(running, [pb.RunRequest(open=opening), steps(message("a", "tells"))])
        kept = [event for event in events if event.step.event.WhichOneof("event") != "progress"]
        assert {event.sequence for event in events if event not in kept} <= {0}
        # started of the run and of the step, ended of the step and of the run
        assert [event.sequence for event in kept] == ([1, 3, 4] if detail == "OUTCOMES" else [1, 2, 3, 4])
        return [event.step.event.WhichOneof("event") or event.WhichOneof("event") for event in events]  # type: ignore[misc]

    assert await kinds("OUTCOMES") == ["started", "ended", "ended"]
    assert await kinds("LIFECYCLE") == ["started", "started", "ended", "ended"]
    assert await kinds("PROGRESS") == ["started", "started", "progress", "progress", "progress", "ended", "ended"]


@pytest.mark.contract("C11", "C12")
async def test_events_come_by_callback_and_by_iteration(running: RunningMesh) -> None:
    heard: list[StepEvent] = []
    result = await running.mesh.parallel([step("a"), step("b", "read", "missing")], on_event=heard.append)
    for outcome in result:
        told = [event for event in heard if event.task_id == outcome.task_id]
        assert isinstance(told[0], StepStarted)
        assert isinstance(told[-1], StepEnded)
        assert told[-1].outcome == outcome
        assert all(isinstance(event, StepProgressed) for event in told[1:-1])

    run = running.mesh.parallel([step("a")])
    with pytest.raises(RuntimeError, match="has not ended"):
        _ = run.result
    kinds = [type(event) async for event in run]
    assert (kinds[0], kinds[-1]) == (StepStarted, StepEnded)
    assert run.result[0].success


@pytest.mark.contract("C9", "F1")
async def test_when_the_callers_stream_ends_its_steps_are_gone(running: RunningMesh, tmp_path: Path) -> None:
    command = "trap '' TERM; echo $$ >> pids; sleep 600 & sleep 600"
    events: list[StepEvent] = []
    run = asyncio.ensure_future(
        running.mesh.parallel([step(str(n), "shell", command) for n in range(4)], on_event=events.append)
    )
    pids_file = tmp_path / "pids"
    await until(lambda: pids_file.exists() and len(pids_file.read_text().split()) == 4, "four commands run")
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    pids = pids_file.read_text().split()
    await until(lambda: not any(Path("/proc", pid).exists() for pid in pids), "the commands are gone")
    await until_none_in_flight(running)


@pytest.mark.contract("C44")
async def test_a_request_id_that_is_under_way_is_not_started_twice(running: RunningMesh) -> None:
    first = asyncio.ensure_future(running.mesh.parallel([step("a", "sleep", "600")], request_id="r-1"))
    await until_in_flight(running, 1)
    with pytest.raises(Aborted, match="'r-1' is under way since"):
        await running.mesh.parallel([step("a", "sleep", "600")], request_id="r-1")
    assert [view.steps_in_flight for view in await running.mesh.nodes()] == [1]
    first.cancel()
    await until_none_in_flight(running)
    result = await running.mesh.parallel([step("a")], request_id="r-1")
    assert result[0].success


@pytest.fixture
def rejections(monkeypatch: pytest.MonkeyPatch) -> Counter[RejectionReason]:
    """Counts what nodes do not take."""
    counted: Counter[RejectionReason] = Counter()
    handle = KnownNode.execution_rejected

    def count(node: KnownNode, execution_id: str, rejection: Rejection) -> None:
        counted[rejection.reason] += 1
        handle(node, execution_id, rejection)

    monkeypatch.setattr(KnownNode, "execution_rejected", count)
    return counted


@pytest.mark.contract("C10")
async def test_one_coordinator_sends_a_node_no_more_than_it_takes(
    tmp_path: Path, rejections: Counter[RejectionReason]
) -> None:
    capacity = {"concurrency_hint": 32, "max_concurrent_steps": 3}
    async with running_mesh(tmp_path, node={"capacity": capacity}) as running:
        result = await running.mesh.parallel([step(str(n), "sleep", "0.02") for n in range(60)])
        assert all(outcome.success for outcome in result)
        assert {outcome.attempts for outcome in result} == {1}
    assert not rejections


@pytest.mark.contract("C10")
async def test_a_node_that_rejects_because_it_is_full_is_never_a_steps_failure(
    tmp_path: Path, rejections: Counter[RejectionReason]
) -> None:
    # Each coordinator knows of the other's steps by the node's last word only, so together they send too many.
    capacity = {"concurrency_hint": 8, "max_concurrent_steps": 3}
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(running_mesh(tmp_path, node={"capacity": capacity}))
        sources = {"static": [running.nodes[0].address]}
        other = await stack.enter_async_context(coordinator_alone(name="other", nodes=sources))
        mesh = await stack.enter_async_context(Mesh(other.address))
        await until_ready(mesh, 1)
        specs = [step(str(n), "sleep", "0.02") for n in range(60)]
        results = await asyncio.gather(running.mesh.parallel(specs), mesh.parallel(specs))
    for result in results:
        assert [outcome.task_id for outcome in result] == [str(n) for n in range(60)]
        assert [outcome.failure for outcome in result] == [None] * 60
        assert {outcome.attempts for outcome in result} == {1}
    assert rejections[RejectionReason.FULL] >= 1
    assert set(rejections) == {RejectionReason.FULL}


@pytest.mark.contract("C10", "C45")
async def test_two_callers_share_a_full_node_and_both_get_through(tmp_path: Path) -> None:
    capacity = {"concurrency_hint": 4, "max_concurrent_steps": 4}
    async with running_mesh(tmp_path, node={"capacity": capacity}) as running:
        many = asyncio.ensure_future(running.mesh.parallel([step(str(n), "sleep", "0.02") for n in range(100)]))
        await until_in_flight(running, 4)
        few = await running.mesh.parallel([step("single")])
        assert few[0].success
        assert not many.done()
        assert all(outcome.success for outcome in await many)


@pytest.mark.contract("C12", "F2")
async def test_a_step_that_blocks_its_event_loop_leaves_its_node_live(tmp_path: Path) -> None:
    # Ten times the silence after which a node counts as lost.
    async with running_mesh(tmp_path, coordinator={"nodes": {"silence": 1.5}}) as running:
        blocked = asyncio.ensure_future(running.mesh.parallel([step("b", "blocks", "4")]))
        await until_in_flight(running, 1)
        began = time.monotonic()
        while time.monotonic() - began < 3:
            assert (await running.mesh.parallel([step("n")]))[0].success
            assert [view.state for view in await running.mesh.nodes()] == ["ready"]
        outcome = (await blocked)[0]
        assert outcome.success
        assert outcome.attempts == 1


@pytest.mark.contract("C12", "C43")
async def test_a_node_that_stops_in_mid_run_costs_no_step_and_no_attempt(tmp_path: Path) -> None:
    once = {"policy": {"max_attempts": 1}}
    async with running_mesh(tmp_path, nodes=2, node={"capacity": {"concurrency_hint": 4}}) as running:
        specs = [{**step(str(n), "sleep", "1" if n < 8 else "0.01"), **once} for n in range(40)]
        run = asyncio.ensure_future(running.mesh.parallel(specs))
        await until_in_flight(running, 8)
        await running.nodes[0].drain(0.1)
        result = await run
    assert [outcome.failure for outcome in result] == [None] * 40
    assert [outcome.task_id for outcome in result] == [str(n) for n in range(40)]
    assert {outcome.attempts for outcome in result} == {1}
    assert {outcome.node for outcome in result} == {"node-2"}


async def until_in_flight(running: RunningMesh, count: int) -> None:
    async with asyncio.timeout(20):
        while sum(view.steps_in_flight for view in await running.mesh.nodes()) != count:
            await asyncio.sleep(0.01)


async def until_none_in_flight(running: RunningMesh) -> None:
    await until_in_flight(running, 0)


async def until_it_stands_still(running: RunningMesh) -> None:
    """Wait until nothing has run for a while: the connection takes some more before it is full."""
    looks = 0
    async with asyncio.timeout(DEADLINE):
        while looks < 15:
            await asyncio.sleep(0.1)
            looks = looks + 1 if [view.steps_in_flight for view in await running.mesh.nodes()] == [0] else 0


def test_detail_levels_are_the_protos() -> None:
    assert [f"EVENT_DETAIL_{detail.name}" for detail in EventDetail] == list(run_pb2.EventDetail.keys())[1:]


@pytest.mark.contract("F15")
async def test_a_caller_that_does_not_read_makes_no_heap_of_outcomes(running: RunningMesh) -> None:
    # 300 outputs of half a MiB; what a caller has not read is bounded by some tens of MiB.
    specs = [message(str(n), "shell", "head -c 500000 /dev/zero | tr '\\0' x") for n in range(300)]
    async with open_channel(running.coordinator.address) as channel:
        call = CoordinatorStub(channel).Run(iter([OPEN, steps(*specs)]))
        ended = 0
        async for response in call:
            ended += sum(event.step.event.HasField("ended") for event in response.events)
            if ended:
                break
        await until_it_stands_still(running)
        left = [event async for response in call for event in response.events]
    ended += sum(event.step.event.HasField("ended") for event in left)
    assert ended == 300
    waited_on = [event.waiting.waiting_on for event in left if event.HasField("waiting")]
    assert waited_on[:1] == ["its caller, which has much to read"]
