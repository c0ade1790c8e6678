"""Steps run by a node for a direct caller: with a request id they outlive its stream and run once (C44)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest

from fanfold.errors import Aborted, FanfoldError, InvalidArgument
from fanfold.rpc.channels import open_channel
from fanfold.rpc.status import from_rpc_error
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.v1 import step_pb2
from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeStub
from support.mesh import running_mesh, until
from support.proxy import Proxy, proxied

if TYPE_CHECKING:
    from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeAsyncStub

pytestmark = [pytest.mark.process, pytest.mark.contract("C44")]

GATED = "echo x >> ran; until [ -e gate ]; do sleep 0.05; done; wc -l < ran"
"""A command that notes that it runs, and ends when there is a file `gate`; it says how often it has run."""


class Caller:
    """One call of ExecuteStep."""

    def __init__(
        self,
        stub: ExecutorNodeAsyncStub,
        prompt: str = GATED,
        *,
        request_id: str = "mine",
        agent: str = "shell",
        progress: bool = False,
    ) -> None:
        step = step_pb2.AgentStepSpec(task_id="t", agent=agent, description="d", prompt=prompt)
        request = pb.ExecutorNodeExecuteStepRequest(
            step=step, request_id=request_id, progress=progress, takes_parts=True
        )
        self._call = stub.ExecuteStep(request)
        self.kinds: list[str | None] = []
        self.parts = b""
        self.outcome = step_pb2.StepOutcome()

    async def read(self) -> bool:
        """Read one message; whether there was one."""
        try:
            response = await asyncio.wait_for(self._call.read(), 20)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        if not isinstance(response, pb.ExecutorNodeExecuteStepResponse):
            return False
        self.parts += response.part.piece
        for event in response.events:
            self.kinds.append(event.WhichOneof("event"))
            self.outcome = event.ended.outcome
        return True

    async def end(self) -> step_pb2.StepOutcome:
        """Read to the end; the outcome."""
        while await self.read():
            pass
        assert self.kinds[0] == "started"
        assert self.kinds[-1] == "ended"
        assert set(self.kinds[1:-1]) <= {"progress"}
        return self.outcome

    async def error(self) -> FanfoldError:
        """Read to the end; the error that it is."""
        try:
            while await self.read():
                pass
        except FanfoldError as error:
            return error
        raise AssertionError("it ended well")

    def break_off(self) -> None:
        """Cancel the call, which to the node is a stream that breaks."""
        self._call.cancel()


@asynccontextmanager
async def node(workspace: Path, **settings: Any) -> AsyncIterator[ExecutorNodeAsyncStub]:
    step = {"stop_grace": 0.5, **settings.pop("step", {})}
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(running_mesh(workspace, node={"step": step, **settings}))
        channel = await stack.enter_async_context(open_channel(running.nodes[0].address))
        yield ExecutorNodeStub(channel)


async def begin(stub: ExecutorNodeAsyncStub, workspace: Path, **options: Any) -> Caller:
    """A call whose step runs."""
    caller = Caller(stub, **options)
    await caller.read()
    ran = workspace / "ran"
    await until(lambda: ran.exists() and ran.read_text().endswith("\n"), "it runs")
    return caller


@pytest.mark.contract("C11", "F2")
async def test_a_call_takes_over_the_step_of_one_that_broke(tmp_path: Path) -> None:
    async with node(tmp_path) as stub:
        first = await begin(stub, tmp_path)
        first.break_off()
        second = Caller(stub)
        await second.read()
        assert second.kinds == ["started"]
        (tmp_path / "gate").touch()
        assert (await second.end()).output.strip() == "1"


@pytest.mark.contract("C11")
async def test_a_call_takes_over_from_one_that_still_reads_which_is_told(tmp_path: Path) -> None:
    async with node(tmp_path) as stub:
        first = await begin(stub, tmp_path)
        second = Caller(stub)
        error = await first.error()
        assert isinstance(error, Aborted)
        assert error.reason == "TAKEN_OVER"
        (tmp_path / "gate").touch()
        assert (await second.end()).output.strip() == "1"


async def test_a_connection_that_breaks_costs_the_step_nothing(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(running_mesh(tmp_path))
        proxy: Proxy = await stack.enter_async_context(proxied(running.nodes[0].address))
        channel = await stack.enter_async_context(open_channel(proxy.address))
        first = await begin(ExecutorNodeStub(channel), tmp_path)
        proxy.cut()
        assert (await first.error()).reason
        # By a connection of its own: gRPC may give a call to one that is breaking, which then has to be made again.
        channel = await stack.enter_async_context(open_channel(proxy.address))
        second = Caller(ExecutorNodeStub(channel))
        (tmp_path / "gate").touch()
        assert (await second.end()).output.strip() == "1"


async def test_an_outcome_is_kept_and_told_again_without_running_anything(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    async with node(tmp_path) as stub:
        first = await Caller(stub).end()
        again = await Caller(stub).end()
        other = await Caller(stub, request_id="another").end()
    assert again == first
    assert (first.output.strip(), other.output.strip()) == ("1", "2")


async def test_an_outcome_that_came_while_nobody_listened_is_told_to_who_comes_back(tmp_path: Path) -> None:
    async with node(tmp_path) as stub:
        (await begin(stub, tmp_path)).break_off()
        (tmp_path / "gate").touch()
        while (await stub.DescribeNode(pb.DescribeNodeRequest())).node.status.running_steps:
            await asyncio.sleep(0.02)
        assert (await Caller(stub).end()).output.strip() == "1"


@pytest.mark.contract("F11")
async def test_a_large_outcome_is_kept_too(tmp_path: Path) -> None:
    async with node(tmp_path) as stub:
        for _ in range(2):
            caller = Caller(stub, "echo x >> ran; head -c 30000000 /dev/zero | tr '\\0' x")
            await caller.end()
            assert caller.parts == b"x" * 30_000_000
    assert (tmp_path / "ran").read_text() == "x\n"


async def test_a_failure_is_an_outcome_too_and_is_kept(tmp_path: Path) -> None:
    async with node(tmp_path) as stub:
        for _ in range(2):
            outcome = await Caller(stub, "echo x >> ran; exit 3").end()
            assert outcome.failure.code == step_pb2.FAILURE_CODE_AGENT_FAILED
    assert (tmp_path / "ran").read_text() == "x\n"


async def test_outcomes_are_kept_for_their_time_only(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    async with node(tmp_path, kept={"seconds": 1.0}) as stub:
        assert (await Caller(stub).end()).output.strip() == "1"
        assert (await Caller(stub).end()).output.strip() == "1"
        await asyncio.sleep(1.5)
        assert (await Caller(stub).end()).output.strip() == "2"


@pytest.mark.contract("F15")
async def test_only_so_much_is_kept_and_the_oldest_goes_first(tmp_path: Path) -> None:
    writes = "echo x >> ran; head -c 100000 /dev/zero | tr '\\0' x"
    async with node(tmp_path, kept={"characters": 250_000}) as stub:
        for name in ["a", "b", "c"]:
            await Caller(stub, writes, request_id=name).end()
        for name in ["c", "b"]:
            await Caller(stub, writes, request_id=name).end()
        assert (tmp_path / "ran").read_text() == "x\n" * 3
        await Caller(stub, writes, request_id="a").end()
        assert (tmp_path / "ran").read_text() == "x\n" * 4


@pytest.mark.contract("F1")
async def test_a_step_whose_caller_does_not_come_back_in_time_is_cancelled_and_told_so(tmp_path: Path) -> None:
    async with node(tmp_path, step={"caller_grace": 0.5}) as stub:
        first = await begin(stub, tmp_path, prompt="echo $$ > ran; exec sleep 600")
        process = Path("/proc", (tmp_path / "ran").read_text().strip())
        first.break_off()
        await until(lambda: not process.exists(), "the step is gone")
        outcome = await Caller(stub, "echo $$ > ran; exec sleep 600").end()
    assert outcome.failure.code == step_pb2.FAILURE_CODE_CANCELLED
    assert outcome.failure.message == "its caller did not come back within 0.5 s"


async def test_a_caller_that_comes_back_in_time_ends_the_grace(tmp_path: Path) -> None:
    async with node(tmp_path, step={"caller_grace": 1.0}) as stub:
        (await begin(stub, tmp_path)).break_off()
        second = Caller(stub)
        await second.read()
        await asyncio.sleep(1.5)
        (tmp_path / "gate").touch()
        assert (await second.end()).success


@pytest.mark.contract("F1")
async def test_without_a_request_id_a_step_ends_with_its_stream(tmp_path: Path) -> None:
    async with node(tmp_path) as stub:
        caller = await begin(stub, tmp_path, request_id="", prompt="echo $$ > ran; exec sleep 600")
        process = Path("/proc", (tmp_path / "ran").read_text().strip())
        caller.break_off()
        await until(lambda: not process.exists(), "the step is gone")


@pytest.mark.contract("C41")
async def test_a_request_id_that_was_given_with_another_step_is_refused(tmp_path: Path) -> None:
    async with node(tmp_path) as stub:
        first = await begin(stub, tmp_path)
        for ended in (False, True):
            error = await Caller(stub, "echo other").error()
            assert isinstance(error, InvalidArgument)
            assert error.violations[0].field == "request_id"
            if not ended:
                (tmp_path / "gate").touch()
                assert (await first.end()).success


async def test_calls_that_come_at_once_run_the_step_once(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    async with node(tmp_path) as stub:
        callers = [Caller(stub) for _ in range(10)]
        ends = await asyncio.gather(*(caller.end() for caller in callers), return_exceptions=True)
        assert (await Caller(stub).end()).output.strip() == "1"
    told = [end for end in ends if isinstance(end, step_pb2.StepOutcome)]
    assert told
    assert {outcome.output.strip() for outcome in told} == {"1"}
    assert all(isinstance(end, Aborted) for end in ends if not isinstance(end, step_pb2.StepOutcome))


async def test_a_call_that_takes_over_says_itself_whether_it_wants_progress(tmp_path: Path) -> None:
    chatters = "echo >> ran; i=0; until [ -e gate ]; do i=$((i+1)); echo $i; sleep 0.05; done"
    async with node(tmp_path) as stub:
        (await begin(stub, tmp_path, prompt=chatters)).break_off()
        second = Caller(stub, chatters, progress=True)
        while second.kinds.count("progress") < 3:
            await second.read()
        (tmp_path / "gate").touch()
        assert (await second.end()).success
