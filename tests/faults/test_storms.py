"""Fan-outs while nodes are killed, frozen, cut off and drained: every step ends once, and never runs beside itself."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import shlex
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from fanfold import Mesh
from fanfold.model.node import NodeState
from fanfold.model.step import StepEvent
from faults.agents import beating
from faults.checker import Execution, History, complaints, executions_of
from faults.storms import StormyNode, let_loose, schedule, stormy_nodes
from support.mesh import coordinator_alone, until, until_ready

pytestmark = pytest.mark.process

SEEDS, LONG_SEEDS = 3, 300
STEPS = 60
DESCRIPTORS = 8
"""Open files by which the test process may differ, for what gRPC keeps for later."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        seeds = LONG_SEEDS if metafunc.config.getoption("--long") else SEEDS
        metafunc.parametrize("seed", range(1, seeds + 1), ids=lambda seed: f"seed-{seed}")


def step(number: int, draw: random.Random, history: Path, mark: str) -> dict[str, Any]:
    """A step of any kind. Some last so long that what was given up could meet what took its place."""
    task_id = f"step-{number}"
    seconds = draw.uniform(3, 5) if draw.random() < 0.1 else draw.uniform(0.1, 2)
    agent = draw.choice(["shell", "shell", "beats-alone", "beats-shared"])
    if agent == "shell":
        daemon = mark if draw.random() < 0.3 else ""
        words = [sys.executable, "-IS", beating.__file__, str(history), task_id, str(seconds), daemon]
        prompt = f"MARK={mark} exec {shlex.join(words)}"
    else:
        prompt = json.dumps({"history": str(history), "seconds": seconds})
    policy = {"max_attempts": 10}
    return {"task_id": task_id, "agent": agent, "description": "d", "prompt": prompt, "policy": policy}


def processes_with(mark: str) -> list[psutil.Process]:
    """Live processes that have a mark in their environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def survivors(executions: Sequence[Execution]) -> list[Execution]:
    """Executions whose process is still there, and is not another one that got its number."""
    found = []
    since = time.time() - time.monotonic()
    for execution in executions:
        with suppress(psutil.Error):
            process = psutil.Process(execution.pid)
            if process.create_time() <= since + execution.began and process.status() != psutil.STATUS_ZOMBIE:
                found.append(execution)
    return found


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


async def until_quiet(mesh: Mesh) -> None:
    """Wait until nothing is in flight, by the coordinator's count and by every node's own."""
    async with asyncio.timeout(20):
        while any(view.steps_in_flight or view.node.status.running_steps for view in await mesh.nodes()):
            await asyncio.sleep(0.02)


@pytest.mark.contract("C6", "C9", "C11", "C12", "C19", "C43", "F1", "F2", "F3", "F17", "F18")
async def test_whatever_befalls_nodes_every_step_ends_once_and_never_runs_beside_itself(
    seed: int, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    file, mark = tmp_path / "history", f"mark-{uuid.uuid4().hex}"
    steps = [step(number, draw, file, mark) for number in range(STEPS)]
    faults = schedule(draw)
    events: list[StepEvent] = []
    files_before = open_files()
    async with stormy_nodes(tmp_path) as nodes:
        sources = {
            "static": [node.proxy.address for node in nodes],
            "silence": 2.0,
            "redial_delay": 0.2,
            "lease": 2.0,
            "lease_grace": 1.5,
            "lease_margin": 0.5,
        }
        placement = {"retry_first": 0.05, "retry_most": 0.2, "unplaceable": 30}
        async with (
            coordinator_alone(nodes=sources, placement=placement) as coordinator,
            Mesh(coordinator.address) as mesh,
        ):
            await until_ready(mesh, len(nodes))
            run = asyncio.ensure_future(mesh.parallel(steps, on_event=events.append))
            try:
                async with asyncio.timeout(60):
                    await let_loose(faults, nodes, run.done)
                    result = await run
            except TimeoutError:
                pytest.fail(f"seed {seed}: not over in time; {len(events)} events\n{told(nodes)}\n{await mesh.nodes()}")
            await until_ready(mesh, len(nodes))
            await until_quiet(mesh)
            await until(lambda: not processes_with(mark), "no process of a command is left")
    executions = executions_of(file.read_text().splitlines())
    history = History(
        task_ids=[one["task_id"] for one in steps],
        outcomes=result.outcomes,
        events=events,
        executions=executions,
        freezes=[span for node in nodes for span in node.freezes],
        drains=[span for node in nodes for span in node.drains],
    )
    found = complaints(history)
    assert not found, "\n".join([f"seed {seed}:", *found, "what was done:", told(nodes)])
    await until(lambda: not survivors(executions), "no process of an execution is left")
    await until(lambda: open_files() <= files_before + DESCRIPTORS, "no more files are open than before")


def told(nodes: Sequence[StormyNode]) -> str:
    return "\n".join(line for _, line in sorted(line for node in nodes for line in node.told))
