"""Nodes as a user runs them, really killed in the midst of a fan-out (C9, C12, F3, F17)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from fanfold import Mesh
from fanfold.cli.embedded import EmbeddedMesh, Plan
from fanfold.model.node import NodeState
from fanfold.model.run import Budget, ParallelResult
from fanfold.model.step import FailureCode, StepEvent, StepProgressed, StepStarted
from fanfold.sdk.parallel import ParallelRun
from support.mesh import AGENTS, until, until_ready

pytestmark = pytest.mark.process

DAEMON = "(setsid sh -c 'sleep 600 & sleep 600' >/dev/null 2>&1 &)"
"""A command that leaves its session and forks twice, as daemons do."""


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[EmbeddedMesh]:
    leases = {"nodes": {"lease": 2, "lease_grace": 1, "lease_margin": 0.5}}
    plan = Plan(
        data_dir=tmp_path / "data",
        workspace=tmp_path,
        agents=AGENTS,
        nodes=2,
        shell=True,
        hint=8,
        coordinator=leases,
    )
    async with EmbeddedMesh(plan) as mesh:
        yield mesh


def step(task_id: str, agent: str, prompt: str) -> dict[str, str]:
    return {"task_id": task_id, "agent": agent, "description": "d", "prompt": prompt}


def processes_of(word: str) -> list[psutil.Process]:
    """Live processes with a word in their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if word in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def node_processes(mesh: EmbeddedMesh, name: str) -> tuple[psutil.Process, psutil.Process]:
    """Supervisor and runtime of a node."""
    settings = str(mesh.plan.data_dir / f"{name}.yaml")
    (supervisor,) = [child for child in psutil.Process().children() if settings in child.cmdline()]
    # Launchers are forks of the supervisor and look like it.
    (runtime,) = [child for child in supervisor.children() if child.cmdline()[3] == "fanfold.cli"]
    return supervisor, runtime


@pytest.mark.contract("C9", "C12", "F3", "F17")
@pytest.mark.parametrize(
    "kill",
    [
        pytest.param(lambda supervisor, _runtime: supervisor.kill(), id="supervisor killed"),
        pytest.param(lambda _supervisor, runtime: runtime.kill(), id="runtime killed"),
    ],
)
async def test_a_killed_node_takes_only_its_own_steps_and_leaves_no_process(
    embedded: EmbeddedMesh, kill: Callable[[psutil.Process, psutil.Process], None]
) -> None:
    mark = f"mark-{uuid.uuid4().hex}"
    # Eight on each node, each with a daemon of its own, until they may go; then many short ones.
    waiting = f": {mark}; {DAEMON}; while [ ! -e go ]; do sleep 0.1; done; echo done"
    long = [step(f"long-{n}", "shell", waiting) for n in range(16)]
    short = [step(f"short-{n}", "noop", str(n)) for n in range(200)]
    async with Mesh(embedded.server) as mesh:
        run = asyncio.ensure_future(mesh.parallel(long + short))
        await until(lambda: len(processes_of(mark)) == 16, "sixteen commands run")
        supervisor, runtime = node_processes(embedded, "node-1")
        launchers = [process for process in supervisor.children() if process != runtime]
        doomed = [process for launcher in launchers for process in launcher.children(recursive=True)]
        assert len({process.pid for process in doomed}) >= 8
        kill(supervisor, runtime)
        await until(lambda: not any(process.is_running() for process in doomed), "the node's processes are gone")
        await until_ready(mesh, 1)
        ready = [view.node.name for view in await mesh.nodes() if view.state is NodeState.READY]
        assert ready == ["node-2"]
        await until(lambda: len(processes_of(mark)) == 8, "the other node's commands are still there")
        (embedded.plan.workspace / "go").touch()
        result = await asyncio.wait_for(run, 60)
    assert [outcome.task_id for outcome in result] == [one["task_id"] for one in long + short]
    assert all(outcome.success for outcome in result), [outcome.failure for outcome in result if outcome.failure]
    assert {outcome.node for outcome in result} == {"node-2"}, "what the lost node had was run again elsewhere"
    assert sorted(outcome.attempts for outcome in result[:16]) == [1] * 8 + [2] * 8
    assert {outcome.attempts for outcome in result[16:]} == {1}
    await until(lambda: processes_of(mark) == [], "nothing is left")


@pytest.mark.contract("C13")
async def test_what_a_killed_node_had_is_charged_whole_and_its_retry_needs_new_tokens(embedded: EmbeddedMesh) -> None:
    def spender(task_id: str, max_tokens: int, prompt: str) -> dict[str, object]:
        return {**step(task_id, "spends", prompt), "policy": {"max_tokens": max_tokens, "max_attempts": 2}}

    async with Mesh(embedded.server) as mesh:
        # They are placed in turn on the two nodes, which are equally loaded. 600 and 300 of the 1,000 are set aside.
        run = mesh.parallel([spender("dear", 600, "10 wait"), spender("cheap", 300, "20 wait")], budget_tokens=1000)
        places: dict[str, str] = {}
        told: list[StepEvent] = []
        running = asyncio.ensure_future(follow(run, places, told))
        await until(lambda: len(told) == 2, "both have told of their first call")
        assert sorted(places.values()) == ["node-1", "node-2"]
        supervisor, _ = node_processes(embedded, places["dear"])
        doomed = supervisor.children(recursive=True)
        supervisor.kill()
        await until(lambda: not any(process.is_running() for process in doomed), "the node's processes are gone")
        (embedded.plan.workspace / "go").touch()
        result = await asyncio.wait_for(running, 60)
    dear, cheap = result
    assert cheap.success, cheap.failure
    assert cheap.usage.tokens == 20
    assert dear.failure is not None
    assert dear.failure.code is FailureCode.BUDGET_EXHAUSTED
    assert f"NODE_LOST: node {places['dear']} was lost" in dear.failure.message
    assert (dear.attempts, dear.node) == (1, places["dear"])
    assert result.budget == Budget(limit=1000, spent=620, refused_steps=1)


async def follow(run: ParallelRun, places: dict[str, str], told: list[StepEvent]) -> ParallelResult:
    """Read a run to its end, noting where its steps run and their progress."""
    async for event in run:
        if isinstance(event, StepStarted):
            places[event.task_id] = event.node
        elif isinstance(event, StepProgressed):
            told.append(event)
    return run.result
