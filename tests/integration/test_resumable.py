"""Resumable runs as a Python program sees them, over coordinators that die, drain and hand over (C16 to C19, C43)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fanfold import Mesh
from fanfold.model.run import ParallelResult
from fanfold.sdk.parallel import ParallelRun
from support.coordinators import coordinators
from support.mesh import until

pytestmark = pytest.mark.process

STEP_SECONDS = 0.15


def step(task_id: str, prompt: str) -> dict[str, str]:
    return {"task_id": task_id, "agent": "shell", "description": "d", "prompt": prompt}


def noted(count: int) -> list[dict[str, str]]:
    """Steps that each leave a line when they have run."""
    return [step(f"s{n}", f"sleep {STEP_SECONDS}; echo s{n} >> ran; echo out {n}") for n in range(count)]


def ran(folder: Path) -> list[str]:
    file = folder / "ran"
    return file.read_text().split() if file.exists() else []


async def holder_of(mesh: Mesh, run: ParallelRun) -> str:
    return (await mesh.run(run.run_id)).coordinator


@pytest.mark.contract("C16", "C19", "F6", "F7")
async def test_a_run_goes_on_when_its_coordinator_is_killed(tmp_path: Path) -> None:
    specs = noted(40)
    async with coordinators(tmp_path) as up, Mesh(up.servers) as mesh:
        run = mesh.parallel_resumable(specs, "release-audit")
        task = asyncio.ensure_future(run)
        await until(lambda: sum(o is not None for o in run.outcomes) >= 8, "some steps have ended")
        recorded = {o["task_id"] for o in run.outcomes if o is not None}
        first = await holder_of(mesh, run)
        await up.of(first).kill()
        result: ParallelResult = await asyncio.wait_for(task, 60)
        assert [o["output"] for o in result] == [f"out {n}\n" for n in range(40)]
        assert all(o["success"] for o in result)
        lines = ran(up.workspace)
        assert {name: lines.count(name) for name in recorded} == dict.fromkeys(recorded, 1)
        assert await holder_of(mesh, run) != first
