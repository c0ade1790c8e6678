"""What a Python user relies on: `Mesh`, `SyncMesh` and `ParallelRun` (C9, C12)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import fanfold
from fanfold import Mesh, SyncMesh
from fanfold.errors import FailedPrecondition, InvalidArgument, Unavailable
from fanfold.model.step import StepEvent
from support.mesh import RunningMesh, running_mesh

pytestmark = pytest.mark.process


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningMesh]:
    async with running_mesh(tmp_path) as up:
        yield up


def step(task_id: str, agent: str = "noop", prompt: str = "x") -> dict[str, str]:
    return {"task_id": task_id, "agent": agent, "description": "d", "prompt": prompt}


async def test_a_run_runs_once_however_often_it_is_awaited(running: RunningMesh) -> None:
    heard: list[StepEvent] = []
    run = running.mesh.parallel([step("a")], on_event=heard.append)
    first = await run
    assert (await run) is first
    assert run.result is first
    assert run.run_id.startswith("run-")
    assert len(heard) == 2
    with pytest.raises(RuntimeError, match="begun already"):
        async for _ in run:
            pass


async def test_what_had_ended_is_kept_when_a_run_is_cancelled(running: RunningMesh) -> None:
    run = running.mesh.parallel([step("long", "sleep", "600"), step("short")])
    task = asyncio.ensure_future(run)
    async with asyncio.timeout(20):
        while run.outcomes.count(None) != 1:
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    unfinished, finished = run.outcomes
    assert unfinished is None
    assert finished is not None
    assert finished["success"]
    with pytest.raises(RuntimeError, match="has not ended"):
        _ = run.result


async def test_leaving_the_iteration_cancels_the_run(running: RunningMesh) -> None:
    async for _ in running.mesh.parallel([step("long", "sleep", "600")]):
        break
    async with asyncio.timeout(20):
        while [view.steps_in_flight for view in await running.mesh.nodes()] != [0]:
            await asyncio.sleep(0.01)


async def test_a_callback_must_be_plain_and_what_it_raises_cancels_the_run(running: RunningMesh) -> None:
    async def coroutine(_event: StepEvent) -> None: ...

    with pytest.raises(TypeError, match="plain function"):
        running.mesh.parallel([step("a")], on_event=coroutine)  # type: ignore[arg-type]

    def fails(_event: StepEvent) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await running.mesh.parallel([step("long", "sleep", "600")], on_event=fails)
    async with asyncio.timeout(20):
        while [view.steps_in_flight for view in await running.mesh.nodes()] != [0]:
            await asyncio.sleep(0.01)


@pytest.mark.contract("C41")
@pytest.mark.parametrize(
    "specs",
    [
        None,
        "abc",
        7,
        {"task_id": "a"},
        [None],
        [["a"]],
        [step("")],
        [{**step("a"), "output_schema": {"enum": {1}}}],
        [{**step("a"), "output_schema": {"const": "\ud800"}}],
        [{**step("a"), "output_schema": {"const": float("nan")}}],
        [{**step("a"), "output_schema": {"const": object()}}],
    ],
)
async def test_wrong_steps_are_refused_before_the_mesh_is_asked(specs: Any) -> None:
    async with Mesh("127.0.0.1:1") as mesh:
        with pytest.raises(InvalidArgument):
            await mesh.parallel(specs)
        with pytest.raises(InvalidArgument, match="request_id"):
            await mesh.parallel([step("a")], request_id=5)  # type: ignore[arg-type]


async def test_a_mesh_that_is_not_there_is_unavailable_by_its_address() -> None:
    async with Mesh("127.0.0.1:1") as mesh:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
            await mesh.parallel([step("a")])


async def test_a_closed_mesh_says_so(running: RunningMesh) -> None:
    async with Mesh(running.coordinator.address) as mesh:
        pass
    with pytest.raises(FailedPrecondition, match="closed"):
        await mesh.nodes()


async def test_single_steps_nodes_and_agents(running: RunningMesh) -> None:
    outcome = await running.mesh.execute(step("a", prompt="hello"))
    assert (outcome.output, outcome.success) == ("hello", True)
    (view,) = await running.mesh.nodes()
    assert (view.node.name, view.state, view.node.version) == ("node-1", "ready", fanfold.__version__)
    names = [agent.name for agent in await running.mesh.agents()]
    assert names == sorted(names)
    assert {"echo", "noop", "shell", "wordcount"} <= set(names)


async def test_the_shown_status_of_a_node_is_the_latest(running: RunningMesh) -> None:
    task = asyncio.ensure_future(running.mesh.parallel([step("long", "sleep", "600")]))
    async with asyncio.timeout(20):
        while [view.node.status.running_steps for view in await running.mesh.nodes()] != [1]:
            await asyncio.sleep(0.05)
    task.cancel()


async def test_the_same_from_ordinary_code(running: RunningMesh) -> None:
    def ordinary() -> None:
        heard: list[StepEvent] = []
        mesh = SyncMesh(running.coordinator.address)
        with pytest.raises(RuntimeError, match="with SyncMesh"):
            mesh.nodes()
        for _ in range(2):  # it can be entered again
            with mesh:
                result = mesh.parallel([step("a"), step("b", "read", "missing")], on_event=heard.append)
                assert [o["success"] for o in result] == [True, False]
                assert mesh.execute(step("c", prompt="hi"))["output"] == "hi"
                assert len(mesh.nodes()) == 1
                assert len(mesh.agents()) > 5
        assert {event.task_id for event in heard} == {"a", "b"}

    await asyncio.to_thread(ordinary)


async def test_ordinary_code_cannot_wait_for_itself(running: RunningMesh) -> None:
    def ordinary() -> None:
        with SyncMesh(running.coordinator.address) as mesh:

            def ask_again(_event: StepEvent) -> None:
                mesh.nodes()

            with pytest.raises(RuntimeError, match="on_event"):
                mesh.parallel([step("a")], on_event=ask_again)
            assert mesh.parallel([step("b")])[0]["success"]

    await asyncio.wait_for(asyncio.to_thread(ordinary), 30)


def test_importing_the_package_loads_neither_grpc_nor_pydantic() -> None:
    code = "import fanfold, fanfold.agent, sys; print({'grpc', 'pydantic'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
    with pytest.raises(AttributeError, match="no attribute 'Msh'"):
        _ = fanfold.Msh
