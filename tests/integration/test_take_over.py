"""Runs that outlive their coordinator: killed, or told to stop, in the middle of it (C18, C19, C43, F2, F5, F6)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from fanfold import Mesh
from fanfold.model.pipeline import StageContext
from fanfold.model.run import PipelineEvent, PipelineResult
from fanfold.rpc.channels import open_channel
from fanfold.sdk.pipeline import PipelineRun
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1 import run_pb2, step_pb2
from fanfold.v1.coordinator_pb2_grpc import CoordinatorStub
from support.mesh import DEADLINE, until
from support.pair import JOURNAL, pair
from support.postgres import Server

pytestmark = pytest.mark.process

LIFECYCLE = run_pb2.EVENT_DETAIL_LIFECYCLE
CANCELLED = run_pb2.RUN_STATE_CANCELLED


def shell(task_id: str, command: str) -> step_pb2.AgentStepSpec:
    return step_pb2.AgentStepSpec(task_id=task_id, agent="shell", description="d", prompt=command)


def slow(task_id: str, go_file: str = "go") -> step_pb2.AgentStepSpec:
    """A step that notes its start, waits for a file, and notes its end."""
    return shell(
        task_id,
        f"echo start-{task_id} >> lines; while [ ! -e {go_file} ]; do sleep 0.05; done; "
        f"echo end-{task_id} >> lines; echo did-{task_id}",
    )


def request(steps: Sequence[step_pb2.AgentStepSpec], from_sequence: int = 0) -> list[pb.RunRequest]:
    parallel = pb.ParallelRun(total_steps=len(steps))
    opening = pb.RunOpen(
        workflow_id="audit", request_id="r1", events=LIFECYCLE, parallel=parallel, from_sequence=from_sequence
    )
    return [pb.RunRequest(open=opening), pb.RunRequest(steps=pb.StepBatch(steps=steps))]


async def read_into(events: list[run_pb2.RunEvent], call: Any) -> None:
    while (response := await call.read()) is not grpc.aio.EOF:
        events += response.events


async def go_on(address: str, steps: Sequence[step_pb2.AgentStepSpec], events: list[run_pb2.RunEvent]) -> None:
    """Read the run to its end at this coordinator, asking again while it says that it cannot be told yet."""
    async with asyncio.timeout(30), open_channel(address) as channel:
        stub: Any = CoordinatorStub(channel)
        while True:
            try:
                await read_into(events, stub.Run(iter(request(steps, events[-1].sequence + 1))))
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.1)
            else:
                return


def outputs(events: Sequence[run_pb2.RunEvent]) -> dict[int, str]:
    ended = [event.step for event in events if event.step.event.HasField("ended")]
    assert len({each.index for each in ended}) == len(ended), "a step ended twice"
    return {each.index: each.event.ended.outcome.output.strip() for each in ended}


def attempts(events: Sequence[run_pb2.RunEvent]) -> list[int]:
    return [event.step.event.ended.outcome.attempts for event in events if event.step.event.HasField("ended")]


def assert_whole(events: Sequence[run_pb2.RunEvent], count: int) -> None:
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert outputs(events) == {index: f"did-{index}" for index in range(count)}
    assert attempts(events) == [1] * count
    assert events[-1].ended.run.state == run_pb2.RUN_STATE_COMPLETED


@pytest.mark.contract("C18", "C19", "F2", "F5", "F6")
async def test_a_killed_coordinators_run_goes_on_elsewhere_and_repeats_nothing(tmp_path: Path) -> None:
    steps = [shell("0", "echo start-0 >> lines; echo did-0"), *(slow(str(n)) for n in (1, 2, 3))]
    events: list[run_pb2.RunEvent] = []
    async with pair(tmp_path) as coordinators, open_channel(coordinators.first.address) as channel:
        stub: Any = CoordinatorStub(channel)
        call = stub.Run(iter(request(steps)))
        while not outputs(events):
            events += (await call.read()).events
        await until(lambda: len(coordinators.lines()) == 4, "all steps have begun")
        coordinators.process.send_signal(signal.SIGKILL)
        with pytest.raises(grpc.aio.AioRpcError):
            await read_into(events, call)
        going_on = asyncio.create_task(go_on(coordinators.second, steps, events))
        (coordinators.workspace / "go").touch()
        await going_on
        assert_whole(events, 4)
        assert sorted(coordinators.lines()) == sorted(
            ["start-0", *(f"{what}-{n}" for n in (1, 2, 3) for what in ("start", "end"))]
        )


@pytest.mark.contract("C19", "C43", "F19")
async def test_a_coordinator_that_is_told_to_stop_hands_its_run_over_at_once(tmp_path: Path) -> None:
    steps = [slow(str(n)) for n in range(3)]
    events: list[run_pb2.RunEvent] = []
    async with pair(tmp_path) as coordinators, open_channel(coordinators.first.address) as channel:
        stub: Any = CoordinatorStub(channel)
        call = stub.Run(iter(request(steps)))
        events += (await call.read()).events
        await until(lambda: len(coordinators.lines()) >= 3, "steps have begun")
        coordinators.process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_into(events, call)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        async with open_channel(coordinators.second) as other:
            held: Any = CoordinatorStub(other)
            run_id = events[0].started.run_id
            loop = asyncio.get_running_loop()
            began = loop.time()
            run = (await held.GetRun(pb.GetRunRequest(run_id=run_id))).run
            while run.coordinator != "second":
                assert loop.time() - began < JOURNAL["lease"], "it was not handed over, its lease ended"
                run = (await held.GetRun(pb.GetRunRequest(run_id=run_id))).run
        going_on = asyncio.create_task(go_on(coordinators.second, steps, events))
        (coordinators.workspace / "go").touch()
        await going_on
        assert_whole(events, 3)
        assert len(coordinators.lines()) == 6
        await until(lambda: coordinators.process.returncode is not None, "the first one is gone")


@pytest.mark.contract("C18", "C19", "F5")
async def test_a_frozen_coordinator_finds_its_run_taken_over_and_does_no_harm(tmp_path: Path) -> None:
    steps = [slow(str(n)) for n in range(12)]  # more than the node takes at once, so that there is more to dispatch
    events: list[run_pb2.RunEvent] = []
    async with pair(tmp_path) as coordinators, open_channel(coordinators.first.address) as channel:
        stub: Any = CoordinatorStub(channel)
        call = stub.Run(iter(request(steps)))
        events += (await call.read()).events
        await until(lambda: len(coordinators.lines()) >= 3, "steps have begun")
        coordinators.process.send_signal(signal.SIGSTOP)
        try:
            async with open_channel(coordinators.second) as other:
                held: Any = CoordinatorStub(other)
                run_id = events[0].started.run_id
                async with asyncio.timeout(20):
                    while (await held.GetRun(pb.GetRunRequest(run_id=run_id))).run.coordinator != "second":
                        await asyncio.sleep(0.05)
            going_on = asyncio.create_task(go_on(coordinators.second, steps, events))
            await asyncio.sleep(0)
        finally:
            coordinators.process.send_signal(signal.SIGCONT)
        (coordinators.workspace / "go").touch()
        await going_on
        call.cancel()
        assert_whole(events, 12)
        assert len(coordinators.lines()) == 24


@pytest.mark.contract("C19", "C43")
async def test_a_run_that_is_handed_over_is_heard_of_where_nobody_looks_for_long(
    tmp_path: Path, postgres: Server
) -> None:
    seldom: dict[str, Any] = {"path": "", "lease": 60.0, "renewal": 20.0, "claim": 60.0}
    events: list[run_pb2.RunEvent] = []
    with postgres.database() as url:
        async with pair(tmp_path, url=url, **seldom) as coordinators, open_channel(coordinators.first.address) as first:
            starting: Any = CoordinatorStub(first)
            call = starting.Run(iter(request([slow("0")])))
            events += (await call.read()).events
            await until(lambda: len(coordinators.lines()) == 1, "the step has begun")
            coordinators.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(DEADLINE), open_channel(coordinators.second) as channel:
                second: Any = CoordinatorStub(channel)
                asked = pb.GetRunRequest(run_id=events[0].started.run_id)
                while (await second.GetRun(asked)).run.coordinator != "second":
                    await asyncio.sleep(0.05)
            call.cancel()
            (coordinators.workspace / "go").touch()
            await go_on(coordinators.second, [slow("0")], events)
            assert_whole(events, 1)


@pytest.mark.contract("C19", "C27")
async def test_a_run_is_cancelled_through_another_coordinator_though_its_own_is_frozen(tmp_path: Path) -> None:
    async with pair(tmp_path) as coordinators, open_channel(coordinators.first.address) as channel:
        stub: Any = CoordinatorStub(channel)
        call = stub.Run(iter(request([slow("0")])))
        run_id = (await call.read()).events[0].started.run_id
        await until(lambda: len(coordinators.lines()) == 1, "the step has begun")
        coordinators.process.send_signal(signal.SIGSTOP)
        try:
            async with open_channel(coordinators.second) as other:
                second: Any = CoordinatorStub(other)
                answer = await second.CancelRun(pb.CancelRunRequest(run_id=run_id, reason="enough"))
                assert answer.run.run_id == run_id
                async with asyncio.timeout(20):
                    while (run := (await second.GetRun(pb.GetRunRequest(run_id=run_id))).run).state != CANCELLED:
                        await asyncio.sleep(0.05)
            assert run.reason == "enough"
            assert run.coordinator == "second"
        finally:
            coordinators.process.send_signal(signal.SIGCONT)
        call.cancel()


@pytest.mark.contract("C14", "C16", "C19")
async def test_a_pipeline_from_python_outlives_its_coordinator(tmp_path: Path) -> None:
    def survey(ctx: StageContext) -> dict[str, Any]:
        return python_step(f"survey-{ctx.item}", f"echo start-survey-{ctx.item} >> lines; echo saw-{ctx.item}")

    def review(ctx: StageContext) -> dict[str, Any]:
        assert ctx.previous is not None
        wait = "while [ ! -e go ]; do sleep 0.05; done"
        name = f"review-{ctx.item}"
        return python_step(name, f"echo start-{name} >> lines; {wait}; echo {ctx.previous.output.strip()}-reviewed")

    async with (
        pair(tmp_path) as coordinators,
        Mesh([coordinators.first.address, coordinators.second]) as mesh,
    ):
        numbers: list[int] = []

        def hear(event: PipelineEvent) -> None:
            if event.sequence:
                numbers.append(event.sequence)

        run = mesh.pipeline(["a", "b"], [survey, review], workflow_id="audit", on_event=hear)
        running = asyncio.ensure_future(_await(run))
        await until(lambda: len(coordinators.lines()) == 4, "both reviews run")
        coordinators.process.send_signal(signal.SIGKILL)
        (coordinators.workspace / "go").touch()
        async with asyncio.timeout(40):
            result = await running
        assert [outcome.output.strip() if outcome else None for outcome in result] == [
            "saw-a-reviewed",
            "saw-b-reviewed",
        ]
        assert sorted(coordinators.lines()) == sorted(
            f"start-{stage}-{item}" for stage in ("survey", "review") for item in "ab"
        )
        assert numbers == sorted(set(numbers))


async def _await(run: PipelineRun) -> PipelineResult:
    return await run


def python_step(task_id: str, command: str) -> dict[str, Any]:
    return {"task_id": task_id, "agent": "shell", "description": "d", "prompt": command}
