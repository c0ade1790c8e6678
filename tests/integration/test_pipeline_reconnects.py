"""Journaled pipelines whose caller's connection breaks while they run (C14, C19)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fanfold import Mesh, StageContext
from fanfold.sdk.pipeline import PipelineRun
from support.coordinators import journal_in
from support.mesh import RunningMesh, running_mesh, until
from support.proxy import proxied

pytestmark = pytest.mark.process

ITEMS = ["a", "b", "c", "d"]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningMesh]:
    (tmp_path / "workspace").mkdir()
    async with running_mesh(tmp_path / "workspace", coordinator=journal_in(tmp_path)) as mesh:
        yield mesh


@pytest.mark.contract("C14", "C19")
async def test_a_connection_that_breaks_again_and_again_does_not_cancel_a_journaled_pipeline(
    running: RunningMesh,
) -> None:
    def wait(ctx: StageContext) -> dict[str, Any]:
        prompt = f"while [ ! -e go-{ctx.index} ]; do sleep 0.05; done; echo did {ctx.item}"
        return {"task_id": f"t{ctx.index}", "agent": "shell", "description": "wait", "prompt": prompt}

    async def done(run: PipelineRun) -> list[str | None]:
        return [outcome.output if outcome else None for outcome in await run]

    def has_come(index: int) -> bool:
        return run.outcomes[index] is not None

    async with proxied(running.coordinator.address) as proxy, Mesh(proxy.address) as mesh:
        run = mesh.pipeline(ITEMS, [wait], workflow_id="audit")
        task = asyncio.ensure_future(done(run))
        await until(lambda: bool(run.run_id), "the run is told to have started")
        first = run.run_id
        for index in range(len(ITEMS)):
            proxy.cut()
            await until(lambda: "a coordinator" in run.waiting_on, "the call is lost")
            (running.workspace / f"go-{index}").touch()
            await until(partial(has_come, index), "the run is gone on with")
        assert await asyncio.wait_for(task, 20) == [f"did {item}\n" for item in ITEMS]
        assert run.run_id == first
