"""Pipelines as a Python user runs them: `Mesh.pipeline` and `SyncMesh.pipeline` (C14, C15)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fanfold import Mesh, StageContext, SyncMesh
from fanfold.errors import Aborted, InvalidArgument, Unavailable
from fanfold.model.run import PipelineEvent, RunStepEvent, StageFailed
from fanfold.model.step import AgentStepSpec, FailureCode, StepEnded, StepOutcome, StepStarted
from support.mesh import RunningMesh, running_mesh, until

pytestmark = pytest.mark.process


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningMesh]:
    async with running_mesh(tmp_path) as up:
        yield up


async def until_none_in_flight(running: RunningMesh) -> None:
    async with asyncio.timeout(20):
        while [view.steps_in_flight for view in await running.mesh.nodes()] != [0]:
            await asyncio.sleep(0.01)


def survey(ctx: StageContext) -> dict[str, Any]:
    return {"task_id": f"survey-{ctx.index}", "agent": "noop", "description": "survey", "prompt": f"about {ctx.item}"}


def review(ctx: StageContext) -> dict[str, Any]:
    prompt = f"review of {ctx['previous']['output']!r}"
    return {"task_id": f"review-{ctx['index']}", "agent": "noop", "description": "review", "prompt": prompt}


def outputs(result: Any) -> list[str | None]:
    return [outcome and outcome["output"] for outcome in result]


@pytest.mark.contract("C14")
async def test_two_stages_where_the_second_uses_what_the_first_found(running: RunningMesh) -> None:
    result = await running.mesh.pipeline(["cats", {"dogs": [1, None]}], [survey, review])
    assert outputs(result) == ["review of 'about cats'", "review of \"about {'dogs': [1, None]}\""]
    assert [outcome and outcome.task_id for outcome in result] == ["review-0", "review-1"]
    assert (len(result), result.budget, result.failures) == (2, None, ())
    assert result.outcomes[0] is result[0]
    assert repr(result) == "PipelineResult(2 items, 0 failed, 0 without an outcome)"


@pytest.mark.contract("C14")
async def test_the_same_from_ordinary_code(running: RunningMesh) -> None:
    def ordinary() -> list[str | None]:
        with SyncMesh(running.coordinator.address) as mesh:
            return outputs(mesh.pipeline(["cats", "dogs"], [survey, review], on_event=heard.append))

    heard: list[PipelineEvent] = []
    assert await asyncio.to_thread(ordinary) == ["review of 'about cats'", "review of 'about dogs'"]
    assert len(heard) == 8


@pytest.mark.contract("C14", "C15")
async def test_how_chains_end_and_what_is_told_of_it(running: RunningMesh) -> None:
    def first(ctx: StageContext) -> Any:
        match ctx.item:
            case "none":
                return None
            case "raises":
                raise LookupError("no such thing")
            case "fails":
                return {**survey(ctx), "agent": "read", "prompt": "no-such-file"}
            case _:
                return AgentStepSpec(**survey(ctx))

    def second(ctx: StageContext) -> Any:
        return {"short": None, "wrong": {"task_id": "x"}, "odd": 5}.get(ctx.item, review(ctx))

    items = ["none", "raises", "fails", "short", "wrong", "odd", "whole"]
    events: list[PipelineEvent] = []
    run = running.mesh.pipeline(items, [first, second], on_event=events.append)
    result = await run
    assert outputs(result) == [None, None, "", "about short", "about wrong", "about odd", "review of 'about whole'"]
    assert result[2] is not None
    assert result[2]["failure"]["code"] == FailureCode.AGENT_FAILED
    failures = {failure.index: (failure.stage, failure.error) for failure in result.failures}
    assert failures == {
        1: (0, "the stage raised LookupError: no such thing"),
        4: (1, "step.agent: is required; step.description: is required; step.prompt: is required"),
        5: (1, "the stage answered something of type int, which is no step"),
    }
    assert [event for event in events if isinstance(event, StageFailed)] == list(result.failures)
    assert repr(result) == "PipelineResult(7 items, 1 failed, 2 without an outcome)"
    steps = [event for event in events if isinstance(event, RunStepEvent) and event.index == 6]
    kinds = [(event.stage, type(event.event)) for event in steps]
    assert kinds == [(0, StepStarted), (0, StepEnded), (1, StepStarted), (1, StepEnded)]
    assert run.outcomes == result.outcomes


@pytest.mark.contract("C15", "F4")
async def test_a_stage_that_hangs_ends_its_own_chain_and_hangs_nobody_else(running: RunningMesh) -> None:
    release = threading.Event()

    def hangs(ctx: StageContext) -> Any:
        if ctx.index == 1:
            release.wait(30)
        return review(ctx)

    try:
        async with asyncio.timeout(15):
            result = await running.mesh.pipeline(["a", "b", "c"], [survey, hangs], stage_timeout=0.3)
        assert outputs(result) == ["review of 'about a'", "about b", "review of 'about c'"]
        assert [(one.index, one.stage, one.error) for one in result.failures] == [
            (1, 1, "the stage did not answer within 0.3 s")
        ]
        assert (await running.mesh.pipeline(["d"], [survey]))[0] is not None
    finally:
        release.set()


@pytest.mark.contract("C15", "F4")
async def test_a_program_whose_stage_never_returns_ends_all_the_same(running: RunningMesh) -> None:
    code = f"""
import threading
from fanfold import SyncMesh

def hangs(ctx):
    threading.Event().wait()

with SyncMesh({running.coordinator.address!r}) as mesh:
    result = mesh.pipeline([1], [hangs], stage_timeout=0.2)
print(result[0], result.failures[0].error)
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, out.decode(), err.decode()) == (0, "None the stage did not answer within 0.2 s\n", "")


@pytest.mark.contract("C15")
async def test_slow_stages_do_not_block_the_programs_loop(running: RunningMesh) -> None:
    release = threading.Event()

    def slow(ctx: StageContext) -> Any:
        assert release.wait(10)
        return survey(ctx)

    run = asyncio.ensure_future(running.mesh.pipeline(["a"], [slow]))
    assert (await running.mesh.execute(survey(StageContext("x", None, 0, 0)))).success  # the loop runs meanwhile
    assert not run.done()
    release.set()
    assert outputs(await run) == ["about a"]


@pytest.mark.contract("C15")
async def test_stages_are_called_whether_events_are_read_or_not(running: RunningMesh) -> None:
    seen: list[int] = []

    def counted(ctx: StageContext) -> Any:
        seen.append(ctx.index)
        return survey(ctx)

    run = running.mesh.pipeline(list(range(30)), [counted], stage_timeout=5)
    async for event in run:
        if isinstance(event, RunStepEvent) and len(seen) < 30:
            await until(lambda: len(seen) == 30, "all stages are called")
    assert run.result.failures == ()
    assert all(outcome is not None and outcome.success for outcome in run.result)


@pytest.mark.contract("C41")
@pytest.mark.parametrize(
    ("items", "told"),
    [
        (["a", {1, 2}], r"items\[1\]: must be JSON"),
        (["a", float("nan")], r"items\[1\]: must be JSON"),
        (["\ud800"], r"items\[0\]: must be JSON"),
        ([object()], r"items\[0\]: must be JSON"),
        ("abc", "items: must be a list of JSON values, not str"),
        (7, "items: must be a list of JSON values, not int"),
    ],
)
async def test_items_that_are_no_json_are_refused_by_position_before_the_mesh_is_asked(items: Any, told: str) -> None:
    async with Mesh("127.0.0.1:1") as mesh:
        with pytest.raises(InvalidArgument, match=told):
            await mesh.pipeline(items, [survey])


async def test_what_the_coordinator_refuses_is_told_by_field(running: RunningMesh) -> None:
    deep: Any = "x"
    for _ in range(70):
        deep = [deep]
    with pytest.raises(InvalidArgument, match=r"items\[1\]: must be nested at most 64 deep"):
        await running.mesh.pipeline(["a", deep], [survey])
    with pytest.raises(InvalidArgument, match=r"limits\.stages"):
        await running.mesh.pipeline(["a"], [survey] * 101)


@pytest.mark.contract("C15")
async def test_coroutine_functions_are_refused_at_once(running: RunningMesh) -> None:
    async def stage(_ctx: StageContext) -> None: ...

    async def listener(_event: PipelineEvent) -> None: ...

    with pytest.raises(TypeError, match=r"stages\[1\] must be a plain function"):
        running.mesh.pipeline(["a"], [survey, stage])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="plain function"):
        running.mesh.pipeline(["a"], [survey], on_event=listener)  # type: ignore[arg-type]


async def test_a_mesh_that_is_not_there_is_unavailable() -> None:
    async with Mesh("127.0.0.1:1") as mesh:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
            await mesh.pipeline(["a"], [survey])


@pytest.mark.contract("C14", "F1")
async def test_cancelling_it_stops_its_steps_and_keeps_what_had_ended(running: RunningMesh) -> None:
    def sleeps(ctx: StageContext) -> Any:
        return {**review(ctx), "agent": "sleep", "prompt": "600"} if ctx.index else None

    run = running.mesh.pipeline(["a", "b"], [survey, sleeps])
    task = asyncio.ensure_future(run)
    await until(lambda: run.outcomes.count(None) == 0 and len(run.outcomes) == 2, "both first steps have ended")
    async with asyncio.timeout(20):
        while [view.steps_in_flight for view in await running.mesh.nodes()] != [1]:
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_none_in_flight(running)
    assert outputs(run.outcomes) == ["about a", "about b"]
    with pytest.raises(RuntimeError, match="has not ended"):
        _ = run.result


async def test_what_a_listener_raises_cancels_the_run(running: RunningMesh) -> None:
    def sleeps(ctx: StageContext) -> Any:
        return {**survey(ctx), "agent": "sleep", "prompt": "600"}

    def fails(_event: PipelineEvent) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await running.mesh.pipeline(["a"], [sleeps], on_event=fails)
    await until_none_in_flight(running)


async def test_it_runs_once_and_is_named_by_its_request_id(running: RunningMesh) -> None:
    release = threading.Event()

    def waits(ctx: StageContext) -> Any:
        assert release.wait(10)
        return survey(ctx)

    run = running.mesh.pipeline(["a"], [waits], request_id="r-1")
    task = asyncio.ensure_future(run)
    await until(lambda: bool(run.run_id), "the run has started")
    with pytest.raises(Aborted, match="'r-1' is under way since"):
        await running.mesh.pipeline(["a"], [survey], request_id="r-1")
    release.set()
    result = await task
    assert (await run) is result
    with pytest.raises(RuntimeError, match="begun already"):
        async for _ in run:
            pass


@pytest.mark.contract("C14")
async def test_ten_thousand_items_come_out_complete_and_in_order(tmp_path: Path) -> None:
    async with running_mesh(tmp_path, node={"capacity": {"concurrency_hint": 64}}) as running:
        result = await running.mesh.pipeline(list(range(10_000)), [survey])
    assert outputs(result) == [f"about {number}" for number in range(10_000)]
    assert {outcome.attempts for outcome in result if isinstance(outcome, StepOutcome)} == {1}
