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
from fanfold.model.step import StepEvent
from faults.agents import beating
from faults.checker import Execution, History, complaints, executions_of
from faults.storms import FREEZES, Fault, Kind, StormyNode, let_loose, schedule, stormy_nodes
from support.mesh import coordinator_alone, until, until_ready

pytestmark = pytest.mark.process

SEEDS, LONG_SEEDS = 3, 300
STEPS = 60
RUN_SECONDS = 60
LEASES = {"lease": 2.0, "lease_grace": 1.5, "lease_margin": 0.5, "silence": 2.0, "redial_delay": 0.2}
PATIENCE = {"retry_first": 0.05, "retry_most": 0.2, "unplaceable": 30}
DESCRIPTORS = 8
"""Open files by which the test process may differ, for what gRPC keeps for later."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        seeds = LONG_SEEDS if metafunc.config.getoption("--long") else SEEDS
        metafunc.parametrize("seed", range(1, seeds + 1), ids=lambda seed: f"seed-{seed}")


class Load:
    """The steps of a run, and where they leave their traces."""

    def __init__(self, folder: Path) -> None:
        self.mark = f"mark-{uuid.uuid4().hex}"
        self.steps: list[dict[str, Any]] = []
        self._history = folder / "history"

    def add(self, agent: str, seconds: float, *, daemon: bool = False) -> None:
        """Add a step that beats for a while, as a command perhaps with a daemon."""
        task_id = f"step-{len(self.steps)}"
        if agent == "shell":
            program = [sys.executable, "-IS", beating.__file__]
            words = [*program, str(self._history), task_id, str(seconds), self.mark if daemon else ""]
            prompt = f"export MARK={self.mark}; exec {shlex.join(words)}"
        else:
            prompt = json.dumps({"history": str(self._history), "seconds": seconds})
        policy = {"max_attempts": 10}
        self.steps.append({"task_id": task_id, "agent": agent, "description": "d", "prompt": prompt, "policy": policy})

    def add_some(self, draw: random.Random) -> None:
        """Add steps of all kinds. Some last so long that what was given up could meet what took its place."""
        for _ in range(STEPS):
            seconds = draw.uniform(3, 6) if draw.random() < 0.1 else draw.uniform(0.1, 2)
            self.add(
                draw.choice(["shell", "shell", "beats-alone", "beats-shared"]), seconds, daemon=draw.random() < 0.3
            )

    def executions(self) -> list[Execution]:
        """The lives of the steps, as they wrote them down."""
        return executions_of(self._history.read_text().splitlines())


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


async def run_through(folder: Path, load: Load, faults: Sequence[Fault]) -> None:
    """Run steps on nodes to which faults happen, and see that all went as promised and that nothing is left."""
    events: list[StepEvent] = []
    files_before = open_files()
    async with stormy_nodes(folder) as nodes:
        sources = {"static": [node.proxy.address for node in nodes], **LEASES}
        async with (
            coordinator_alone(nodes=sources, placement=PATIENCE) as coordinator,
            Mesh(coordinator.address) as mesh,
        ):
            await until_ready(mesh, len(nodes))
            run = asyncio.ensure_future(mesh.parallel(load.steps, on_event=events.append))
            try:
                async with asyncio.timeout(RUN_SECONDS):
                    await let_loose(faults, nodes, run.done)
                    result = await run
            except TimeoutError:
                pytest.fail(f"not over in time:\n{told(nodes)}\n{await mesh.nodes()}")
            finally:
                run.cancel()
            await until_ready(mesh, len(nodes))
            await until_quiet(mesh)
            await until(lambda: not processes_with(load.mark), "no process of a command is left")
    history = History(
        task_ids=[step["task_id"] for step in load.steps],
        outcomes=result.outcomes,
        events=events,
        executions=load.executions(),
        freezes=[span for node in nodes for span in node.freezes],
        drains=[span for node in nodes for span in node.drains],
    )
    found = complaints(history)
    assert not found, "\n".join([*found, "what was done:", told(nodes)])
    await until(lambda: not survivors(history.executions), "no process of an execution is left")
    await until(lambda: open_files() <= files_before + DESCRIPTORS, "no more files are open than before")


def told(nodes: Sequence[StormyNode]) -> str:
    return "\n".join(line for _, line in sorted(line for node in nodes for line in node.told))


@pytest.mark.contract("C6", "C9", "C11", "C12", "C19", "C43", "F1", "F2", "F3", "F17", "F18")
async def test_whatever_befalls_nodes_every_step_ends_once_and_never_runs_beside_itself(
    seed: int, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    load = Load(tmp_path)
    load.add_some(draw)
    print(f"seed {seed}")  # shown when it fails, beside the test's id
    await run_through(tmp_path, load, schedule(draw))


@pytest.mark.contract("C6", "C19", "F2", "F17")
@pytest.mark.parametrize("kind", sorted(FREEZES))
async def test_what_a_node_runs_ends_with_its_lease_also_when_the_node_is_frozen(kind: Kind, tmp_path: Path) -> None:
    load = Load(tmp_path)
    for agent in ["shell", "beats-alone", "beats-shared"] * 3:
        load.add(agent, 5.5)
    # Missed at once, and given up after lease, grace and margin, long before it wakes up.
    await run_through(tmp_path, load, [Fault(0.6, 0, kind, 5), Fault(0.7, 0, Kind.CUT, 0)])
