"""A call that is cut short, by its coordinator or by its caller, ends clean and is told why (C43, F1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest

from fanfold.errors import FanfoldError, Unavailable
from fanfold.rpc.channels import open_channel
from fanfold.rpc.status import from_rpc_error
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1 import run_pb2, step_pb2
from fanfold.v1.coordinator_pb2_grpc import CoordinatorStub
from support.mesh import RunningMesh, running_mesh, until
from support.silence import nothing_logged_as_error

pytestmark = pytest.mark.process

WAITS = "trap '' TERM; echo $$ >> pids; sleep 600 & wait; wait"
LARGE = "x" * 4_000_000
"""An answer of which a connection that nobody reads from does not hold many."""

Responses = (
    grpc.aio.UnaryStreamCall[pb.CoordinatorExecuteStepRequest, pb.CoordinatorExecuteStepResponse]
    | (grpc.aio.StreamStreamCall[pb.RunRequest, pb.RunResponse])
)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningMesh]:
    limits = {"prompt_bytes": len(LARGE), "output_bytes": len(LARGE)}
    settings = {"limits": {"prompt_bytes": len(LARGE)}}
    async with running_mesh(tmp_path, node={"step": {"stop_grace": 0.5, **limits}}, coordinator=settings) as up:
        yield up


def shell(task_id: str, command: str) -> step_pb2.AgentStepSpec:
    return step_pb2.AgentStepSpec(task_id=task_id, agent="shell", description="d", prompt=command)


def echo(task_id: str) -> step_pb2.AgentStepSpec:
    return step_pb2.AgentStepSpec(task_id=task_id, agent="echo", description="d", prompt=LARGE)


def run_of(channel: grpc.aio.Channel, *steps: step_pb2.AgentStepSpec) -> Responses:
    async def requests() -> AsyncIterator[pb.RunRequest]:
        yield pb.RunRequest(open=pb.RunOpen(parallel=pb.ParallelRun(), events=run_pb2.EVENT_DETAIL_PROGRESS))
        for step in steps:
            yield pb.RunRequest(steps=pb.StepBatch(steps=[step]))

    return CoordinatorStub(channel).Run(requests())


def execution_of(channel: grpc.aio.Channel, step: step_pb2.AgentStepSpec) -> Responses:
    request = pb.CoordinatorExecuteStepRequest(step=step, events=run_pb2.EVENT_DETAIL_PROGRESS)
    return CoordinatorStub(channel).ExecuteStep(request)


async def error_of(call: Responses) -> FanfoldError:
    """What the call ends with."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    raise AssertionError("the call ended well")


@asynccontextmanager
async def run_in_mid_write(running: RunningMesh) -> AsyncIterator[tuple[Responses, list[Path]]]:
    """A run whose client reads no more, with far more to be written to it than is on its way, and its last step."""
    async with open_channel(running.coordinator.address) as channel:
        run = run_of(channel, *(echo(str(number)) for number in range(6)), shell("last", WAITS))
        assert await asyncio.wait_for(run.read(), 10) is not grpc.aio.EOF  # only then it goes on
        processes = await pids_of(running, 1)
        await until_in_flight(running, 1)
        yield run, processes


async def pids_of(running: RunningMesh, count: int) -> list[Path]:
    """The processes of so many steps, once they run."""
    file = running.workspace / "pids"
    await until(lambda: file.exists() and len(file.read_text().split()) == count, f"{count} commands run")
    return [Path("/proc", pid) for pid in file.read_text().split()]


async def until_in_flight(running: RunningMesh, count: int) -> None:
    async with asyncio.timeout(20):
        while [view.steps_in_flight for view in await running.mesh.nodes()] != [count]:
            await asyncio.sleep(0.01)


@pytest.mark.contract("C41", "C43", "F1")
async def test_open_calls_are_told_that_the_coordinator_drains_and_their_steps_are_gone(running: RunningMesh) -> None:
    async with open_channel(running.coordinator.address) as channel:
        run, execution = run_of(channel, shell("a", WAITS), shell("b", WAITS)), execution_of(channel, shell("c", WAITS))
        ends = [asyncio.create_task(error_of(run)), asyncio.create_task(error_of(execution))]
        processes = await pids_of(running, 3)
        with nothing_logged_as_error():
            await running.coordinator.drain(0.1)
            for error in [await asyncio.wait_for(end, 10) for end in ends]:
                assert isinstance(error, Unavailable)
                assert error.reason == "DRAINING"
                assert error.retry_delay is not None
                assert error.retry_delay > 0
    assert not any(map(Path.exists, processes))


@pytest.mark.contract("C43", "F1")
async def test_a_drain_while_answers_are_written_is_as_clean(running: RunningMesh) -> None:
    async with run_in_mid_write(running) as (run, processes):
        with nothing_logged_as_error():
            await running.coordinator.drain(0.1)
            assert isinstance(await asyncio.wait_for(error_of(run), 10), Unavailable)
        assert not any(map(Path.exists, processes))


@pytest.mark.contract("C9", "F1")
async def test_a_caller_that_cancels_leaves_nothing_behind_and_nothing_to_log(running: RunningMesh) -> None:
    async with open_channel(running.coordinator.address) as channel:
        calls = [run_of(channel, shell("a", WAITS)), execution_of(channel, shell("b", WAITS))]
        reading = [asyncio.create_task(error_of(call)) for call in calls]
        processes = await pids_of(running, 2)
        with nothing_logged_as_error():
            for call in calls:
                call.cancel()
            await until(lambda: not any(map(Path.exists, processes)), "the commands are gone")
            await until_in_flight(running, 0)
        await asyncio.gather(*reading, return_exceptions=True)


@pytest.mark.contract("C9", "F1")
async def test_a_caller_that_cancels_while_answers_are_written_does_not_either(running: RunningMesh) -> None:
    async with run_in_mid_write(running) as (run, processes):
        with nothing_logged_as_error():
            run.cancel()
            await until(lambda: not any(map(Path.exists, processes)), "the command is gone")
            await until_in_flight(running, 0)
