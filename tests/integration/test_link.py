"""Both ends of a link: what each does when the other is old, strange or silent (C5, C10, F18)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration

from coordinator.app import running as running_coordinator
from coordinator.config import CoordinatorConfig
from executor_node.policy import policy_of
from fanfold import Mesh
from fanfold.errors import FailedPrecondition, InvalidArgument, Unavailable
from fanfold.model.step import FailureCode
from fanfold.rpc.channels import open_channel
from fanfold.rpc.server import GrpcServer, Service
from fanfold.rpc.status import from_rpc_error
from fanfold.v1 import coordinator_pb2, executor_node_pb2, node_pb2, step_pb2
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.v1.coordinator_pb2_grpc import CoordinatorStub
from fanfold.v1.executor_node_pb2_grpc import (
    ExecutorNodeServicer,
    ExecutorNodeStub,
    add_ExecutorNodeServicer_to_server,
)

if TYPE_CHECKING:
    from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeAsyncStub
from support.mesh import ANY_PORT, running_mesh, until, until_ready

pytestmark = pytest.mark.process

LinkCall = grpc.aio.StreamStreamCall[pb.LinkRequest, pb.LinkResponse]


def start(execution_id: str, agent: str = "noop", prompt: str = "x", epoch: int = 1) -> pb.StartExecution:
    step = step_pb2.AgentStepSpec(task_id="t", agent=agent, description="d", prompt=prompt)
    return pb.StartExecution(execution_id=execution_id, run_id="run-1", epoch=epoch, step=step)


async def linked(
    stub: ExecutorNodeAsyncStub, coordinator: str = "c", epoch: int = 1, lease: int = 0, held: Sequence[str] = ()
) -> LinkCall:
    """A link that the node has welcomed, telling what it holds; `lease` in seconds."""
    call = stub.Link()
    hello = pb.LinkHello(coordinator=coordinator, link_epoch=epoch, lease=Duration(seconds=lease))
    await call.write(pb.LinkRequest(hello=hello))
    welcome = await call.read()
    assert isinstance(welcome, pb.LinkResponse)
    assert welcome.welcome.node.name == "node-1"
    assert list(welcome.welcome.held_executions) == list(held)
    return call


async def update_of(call: LinkCall, execution_id: str, kind: str) -> pb.ExecutionUpdate:
    """The next update of an execution of that kind: started, ended or rejected."""
    async with asyncio.timeout(20):
        while True:
            message = await call.read()
            assert isinstance(message, pb.LinkResponse), await error_of(call)
            for update in message.updates:
                told = update.event.WhichOneof("event") or update.WhichOneof("update")
                if update.execution_id == execution_id and told == kind:
                    return update


async def lives_of(call: LinkCall, *execution_ids: str) -> dict[str, list[pb.ExecutionUpdate]]:
    """All updates of the executions up to the last of each."""
    lives: dict[str, list[pb.ExecutionUpdate]] = {execution_id: [] for execution_id in execution_ids}
    left = set(execution_ids)
    async with asyncio.timeout(20):
        while left:
            message = await call.read()
            assert isinstance(message, pb.LinkResponse), await error_of(call)
            for update in message.updates:
                lives[update.execution_id].append(update)
                if update.HasField("rejected") or update.event.HasField("ended"):
                    left.remove(update.execution_id)
    return lives


async def error_of(call: LinkCall) -> Exception:
    try:
        while isinstance(await call.read(), pb.LinkResponse):
            pass
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    return AssertionError("the link ended well")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[ExecutorNodeAsyncStub]:
    capacity = {"concurrency_hint": 2, "max_concurrent_steps": 2}
    async with running_mesh(tmp_path, node={"capacity": capacity}) as running, AsyncExitStack() as stack:
        channel = await stack.enter_async_context(open_channel(running.nodes[0].address))
        yield ExecutorNodeStub(channel)


@pytest.mark.contract("C41")
async def test_a_link_begins_with_hello(node: ExecutorNodeAsyncStub) -> None:
    call = node.Link()
    await call.write(pb.LinkRequest(starts=[start("run-1/t/1")]))
    error = await error_of(call)
    assert isinstance(error, InvalidArgument)
    assert error.violations[0].field == "hello.coordinator"


@pytest.mark.contract("C41")
async def test_a_message_that_cannot_be_decoded_ends_the_link(tmp_path: Path) -> None:
    async with running_mesh(tmp_path) as running, open_channel(running.nodes[0].address) as channel:
        call: Any = channel.stream_stream(
            "/fanfold.v1.ExecutorNode/Link", request_serializer=bytes, response_deserializer=pb.LinkResponse.FromString
        )()
        await call.write(pb.LinkRequest(hello=pb.LinkHello(coordinator="c")).SerializeToString())
        await call.write(b"\xff")
        assert isinstance(await error_of(call), InvalidArgument)


@pytest.mark.contract("C9", "C11", "C12")
async def test_a_malformed_step_fails_by_field_and_touches_no_sibling(
    node: ExecutorNodeAsyncStub, tmp_path: Path
) -> None:
    call = await linked(node)
    await call.write(pb.LinkRequest(starts=[start("sibling", "shell", "until [ -e gate ]; do sleep 0.05; done")]))
    await update_of(call, "sibling", "started")
    no_json = start("no json")
    no_json.step.output_schema_json = "{"
    await call.write(pb.LinkRequest(starts=[start("nameless", agent=""), no_json]))
    lives = await lives_of(call, "nameless", "no json")
    for execution_id, field in [("nameless", "step.agent"), ("no json", "step.output_schema_json")]:
        assert [update.event.WhichOneof("event") for update in lives[execution_id]] == ["started", "ended"]
        outcome = lives[execution_id][-1].event.ended.outcome
        assert (outcome.task_id, outcome.success) == ("t", False)
        assert outcome.failure.code == step_pb2.FAILURE_CODE_INTERNAL
        assert f"{field}: must" in outcome.failure.message
    (tmp_path / "gate").touch()
    assert (await update_of(call, "sibling", "ended")).event.ended.outcome.success


@pytest.mark.contract("C20")
async def test_a_step_with_an_unusable_schema_fails_before_its_agent_runs(
    node: ExecutorNodeAsyncStub, tmp_path: Path
) -> None:
    call = await linked(node)
    unusable = start("a", "shell", "touch ran")
    unusable.step.output_schema_json = '{"$ref": "https://example.org/schema"}'
    await call.write(pb.LinkRequest(starts=[unusable]))
    failure = (await update_of(call, "a", "ended")).event.ended.outcome.failure
    assert failure.code == step_pb2.FAILURE_CODE_OUTPUT_INVALID
    assert failure.message.startswith("step.output_schema: $")
    assert not (tmp_path / "ran").exists()


async def test_a_newer_link_of_the_same_coordinator_takes_the_place_of_the_older(node: ExecutorNodeAsyncStub) -> None:
    first = await linked(node, epoch=5)
    other = await linked(node, coordinator="another", epoch=1)
    second = await linked(node, epoch=6)
    assert isinstance(await error_of(first), FailedPrecondition)
    older = node.Link()
    await older.write(pb.LinkRequest(hello=pb.LinkHello(coordinator="c", link_epoch=5)))
    assert isinstance(await error_of(older), FailedPrecondition)
    for call in (second, other):
        await call.write(pb.LinkRequest(starts=[start(f"run-1/{id(call)}/1")]))
        await update_of(call, f"run-1/{id(call)}/1", "ended")


@pytest.mark.contract("C10")
async def test_what_a_node_does_not_take_is_rejected_with_the_reason(node: ExecutorNodeAsyncStub) -> None:
    call = await linked(node)
    await call.write(pb.LinkRequest(starts=[start("a", "sleep", "600"), start("b", "sleep", "600"), start("c")]))
    full = (await update_of(call, "c", "rejected")).rejected
    assert full.reason == pb.REJECTION_REASON_FULL
    assert full.retry_delay.ToMilliseconds() > 0
    await call.write(pb.LinkRequest(cancels=[pb.CancelExecution(execution_id="a", reason="enough")]))
    ended = (await update_of(call, "a", "ended")).event.ended.outcome
    assert ended.failure.code == step_pb2.FAILURE_CODE_CANCELLED
    await call.write(pb.LinkRequest(starts=[start("d", "unheard-of")]))
    assert (await update_of(call, "d", "rejected")).rejected.reason == pb.REJECTION_REASON_AGENT_NOT_OFFERED


async def test_an_older_epoch_of_a_run_is_refused(node: ExecutorNodeAsyncStub) -> None:
    call = await linked(node)
    await call.write(pb.LinkRequest(starts=[start("a", epoch=7)]))
    await update_of(call, "a", "ended")
    await call.write(pb.LinkRequest(starts=[start("b", epoch=6), start("c", epoch=7)]))
    assert (await update_of(call, "b", "rejected")).rejected.reason == pb.REJECTION_REASON_STALE_EPOCH
    await update_of(call, "c", "ended")


async def test_a_second_start_of_an_execution_is_the_same_execution(
    node: ExecutorNodeAsyncStub, tmp_path: Path
) -> None:
    call = await linked(node)
    again = start("a", "shell", "echo once >> runs; sleep 0.3; cat runs")
    await call.write(pb.LinkRequest(starts=[again]))
    await update_of(call, "a", "started")
    await call.write(pb.LinkRequest(starts=[again]))
    outcome = (await update_of(call, "a", "ended")).event.ended.outcome
    assert outcome.output == "once\n"


async def test_an_execution_that_another_coordinator_runs_is_rejected_until_it_is_free(
    node: ExecutorNodeAsyncStub, tmp_path: Path
) -> None:
    stubborn = start("a", "shell", "if mkdir once; then trap '' TERM; touch began; sleep 600; sleep 600; fi")
    first = await linked(node)
    await first.write(pb.LinkRequest(starts=[stubborn]))
    await until((tmp_path / "began").exists, "it runs")
    other = await linked(node, coordinator="another")
    await other.write(pb.LinkRequest(starts=[stubborn]))
    rejected = (await update_of(other, "a", "rejected")).rejected
    assert rejected.reason == pb.REJECTION_REASON_FULL
    assert rejected.retry_delay.ToMilliseconds() > 0

    first.cancel()  # without a lease, its step is being stopped from now on
    while True:
        await other.write(pb.LinkRequest(starts=[stubborn]))
        last = (await lives_of(other, "a"))["a"][-1]
        if not last.HasField("rejected"):
            break
        await asyncio.sleep(last.rejected.retry_delay.ToTimedelta().total_seconds())
    assert last.event.ended.outcome.success


COUNTED = "echo start >> life; sleep {}; echo end >> life; wc -l < life"
"""A command that notes its beginning and its end in a file of the workspace."""


@pytest.mark.contract("F2")
async def test_a_step_outlives_its_link_and_ends_on_the_next(node: ExecutorNodeAsyncStub, tmp_path: Path) -> None:
    first = await linked(node, epoch=1, lease=30)
    await first.write(pb.LinkRequest(starts=[start("a", "shell", COUNTED.format(1))]))
    await until((tmp_path / "life").exists, "it runs")
    first.cancel()
    second = await linked(node, epoch=2, lease=30, held=["a"])
    await second.write(pb.LinkRequest(starts=[start("a", "shell", COUNTED.format(1))]))  # it is the same execution
    outcome = (await update_of(second, "a", "ended")).event.ended.outcome
    assert outcome.output.strip() == "2"
    assert (tmp_path / "life").read_text() == "start\nend\n"


@pytest.mark.contract("F6")
async def test_an_ending_is_told_until_it_is_acknowledged(node: ExecutorNodeAsyncStub, tmp_path: Path) -> None:
    first = await linked(node, epoch=1, lease=30)
    await first.write(pb.LinkRequest(starts=[start("a", "shell", COUNTED.format(0)), start("b")]))
    await lives_of(first, "a", "b")
    await first.write(pb.LinkRequest(acknowledged=["b"], starts=[start("c")]))
    await lives_of(first, "c")
    first.cancel()
    second = await linked(node, epoch=2, lease=30, held=["a", "c"])
    assert (await update_of(second, "a", "ended")).event.ended.outcome.success
    again = start("a", "shell", COUNTED.format(0))
    await second.write(pb.LinkRequest(starts=[again, start("d")]))
    await lives_of(second, "d")
    await second.write(pb.LinkRequest(acknowledged=["a", "c", "d"], starts=[start("e")]))
    await lives_of(second, "e")
    second.cancel()
    await linked(node, epoch=3, lease=30, held=["e"])
    assert (tmp_path / "life").read_text() == "start\nend\n", "it was not run a second time"


@pytest.mark.contract("F1", "F2")
async def test_what_a_coordinator_held_is_killed_when_its_lease_ends(
    node: ExecutorNodeAsyncStub, tmp_path: Path
) -> None:
    call = await linked(node, epoch=1, lease=2)
    await call.write(pb.LinkRequest(starts=[start("a", "shell", "echo $$ > pid; exec sleep 600")]))
    pid_file = tmp_path / "pid"
    await until(lambda: pid_file.exists() and bool(pid_file.read_text().strip()), "the command runs")
    process = Path("/proc", pid_file.read_text().strip())
    loop = asyncio.get_running_loop()
    renewed_until = loop.time() + 4  # two leases
    while loop.time() < renewed_until:
        await call.write(pb.LinkRequest())
        assert process.exists()
        await asyncio.sleep(0.2)
    await until(lambda: not process.exists(), "the command is gone")
    assert isinstance(await error_of(call), Unavailable)
    again = await linked(node, epoch=2, lease=2, held=["a"])
    failure = (await update_of(again, "a", "ended")).event.ended.outcome.failure
    assert (failure.code, failure.retryable) == (step_pb2.FAILURE_CODE_NODE_LOST, True)


async def test_a_lease_must_be_one(node: ExecutorNodeAsyncStub) -> None:
    call = node.Link()
    hello = pb.LinkHello(coordinator="c", link_epoch=1, lease=Duration(seconds=10**9))
    await call.write(pb.LinkRequest(hello=hello))
    error = await error_of(call)
    assert isinstance(error, InvalidArgument)
    assert error.violations[0].field == "hello.lease"


@pytest.mark.contract("F1")
async def test_when_a_link_ends_what_it_ran_is_gone(node: ExecutorNodeAsyncStub, tmp_path: Path) -> None:
    call = await linked(node)
    await call.write(pb.LinkRequest(starts=[start("a", "shell", "echo $$ > pid; exec sleep 600")]))
    pid_file = tmp_path / "pid"
    await until(lambda: pid_file.exists() and bool(pid_file.read_text().strip()), "the command runs")
    call.cancel()
    await until(lambda: not Path("/proc", pid_file.read_text().strip()).exists(), "the command is gone")


@pytest.mark.contract("F18")
async def test_the_status_comes_about_once_a_second(node: ExecutorNodeAsyncStub) -> None:
    call = await linked(node)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(2):
        message = await asyncio.wait_for(call.read(), 10)
        assert isinstance(message, pb.LinkResponse)
        assert message.status.max_concurrent_steps == 2
    assert loop.time() - began > 1


class StrangeNode(ExecutorNodeServicer):
    """A node of a newer release, which keeps what it is sent and answers with fields that nobody here knows."""

    def __init__(self) -> None:
        self.received: list[executor_node_pb2.StartExecution] = []
        self.links = 0
        self.silent = False

    async def Link(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.LinkRequest], context: Any
    ) -> AsyncIterator[pb.LinkResponse]:
        self.links += 1
        agent = node_pb2.Agent(name="noop", description="d")
        status = node_pb2.NodeStatus(concurrency_hint=4, max_concurrent_steps=4)
        node = node_pb2.Node(name="strange", boot_id="b", agents=[agent], status=status)
        async for request in request_iterator:
            if request.HasField("hello"):
                yield pb.LinkResponse(welcome=pb.LinkWelcome(node=node))
            for execution in request.starts:
                self.received.append(execution)
                if not self.silent:
                    yield pb.LinkResponse(updates=[self._ended(execution)])

    def _ended(self, execution: executor_node_pb2.StartExecution) -> pb.ExecutionUpdate:
        outcome = step_pb2.StepOutcome(task_id=execution.step.task_id, agent="noop", success=True)
        outcome.MergeFromString(NEWS)
        ended = step_pb2.StepEvent(task_id=execution.step.task_id, ended=step_pb2.StepEnded(outcome=outcome))
        return pb.ExecutionUpdate(execution_id=execution.execution_id, event=ended)


NEWS = bytes([0xA2, 0x38]) + bytes([4]) + b"news"
"""Field 900, as a newer release may have it."""


@asynccontextmanager
async def strange_mesh(silence: float = 10.0) -> AsyncIterator[tuple[StrangeNode, str]]:
    servicer = StrangeNode()  # type: ignore[abstract]  # it needs no other method
    service = Service(
        "fanfold.v1.ExecutorNode", servicer, add_ExecutorNodeServicer_to_server, policy_of(direct_callers=True)
    )
    async with GrpcServer([service]) as server:
        nodes = {"static": [str(server.address)], "silence": silence, "redial_delay": 0.1}
        config = CoordinatorConfig.model_validate({"listen": ANY_PORT, "metrics_listen": ANY_PORT, "nodes": nodes})
        async with running_coordinator(config) as coordinator, Mesh(coordinator.address) as mesh:
            await until_ready(mesh, 1)
            yield servicer, coordinator.address


@pytest.mark.contract("C5")
async def test_fields_of_newer_peers_pass_through_the_coordinator() -> None:
    step = step_pb2.AgentStepSpec(task_id="t", agent="noop", description="d", prompt="x")
    step.MergeFromString(NEWS)
    async with strange_mesh() as (node, address), open_channel(address) as channel:
        call = CoordinatorStub(channel).ExecuteStep(coordinator_pb2.CoordinatorExecuteStepRequest(step=step))
        (ended,) = [event.ended.outcome async for response in call for event in response.events]
    assert NEWS in node.received[0].step.SerializeToString()
    assert NEWS in ended.SerializeToString()


@pytest.mark.contract("F3", "F18")
async def test_a_node_that_falls_silent_is_lost_and_dialled_again() -> None:
    async with strange_mesh(silence=1.0) as (node, address), Mesh(address) as mesh:
        node.silent = True
        step = {"task_id": "t", "agent": "noop", "description": "d", "prompt": "x"}
        (outcome,) = await asyncio.wait_for(mesh.parallel([step]), 10)
        assert outcome.failure is not None
        assert outcome.failure.code is FailureCode.NODE_LOST
        assert outcome.failure.message == "node strange was lost while the step ran there"
        assert outcome.node == "strange"
        await until(lambda: node.links >= 2, "the coordinator dials again")
