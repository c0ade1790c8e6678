"""Runs that are to be gone: cancelled if need be, waited for, and told of when they cannot be in time (C27)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from fanfold.errors import Cancelled, DeadlineExceeded, InvalidArgument, NotFound
from fanfold.model.run import RunState
from fanfold.sdk.parallel import ParallelRun
from integration.node_harness import new_marker
from support.coordinators import journal_in
from support.mesh import RunningMesh, running_mesh, until
from support.noted import step

pytestmark = [pytest.mark.process, pytest.mark.contract("C27", "F1")]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningMesh]:
    (tmp_path / "workspace").mkdir()
    settings = {**journal_in(tmp_path), "placement": {"cancel_wait": 30.0}}
    async with running_mesh(tmp_path / "workspace", coordinator=settings, node={"step": {"stop_grace": 1.5}}) as mesh:
        yield mesh


def sleeping(seconds: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if (process.info["cmdline"] or [])[-1:] == [seconds]:
            found.append(process)
    return found


def stubborn(seconds: str) -> dict[str, str]:
    """A step that has to be killed."""
    return step("a", f"trap '' TERM; sleep {seconds}; sleep {seconds}")


async def begun(running: RunningMesh, run: ParallelRun, seconds: str) -> asyncio.Future[object]:
    task: asyncio.Future[object] = asyncio.ensure_future(run)
    await until(lambda: bool(sleeping(seconds)) and bool(run.run_id), "the step runs")
    return task


@pytest.mark.parametrize("workflow_id", ["", "audit"], ids=["attached", "resumable"])
async def test_a_run_that_goes_on_is_cancelled_and_gone_when_the_call_returns(
    running: RunningMesh, workflow_id: str
) -> None:
    mesh, seconds = running.mesh, new_marker()
    specs = [stubborn(seconds)]
    run = mesh.parallel_resumable(specs, workflow_id) if workflow_id else mesh.parallel(specs)
    task = await begun(running, run, seconds)
    ended = await mesh.dispose(run.run_id)
    assert not sleeping(seconds)
    assert (ended.state, ended.reason, ended.steps.running) == (RunState.CANCELLED, "it was disposed of", 0)
    with pytest.raises(Cancelled):
        await task
    again = await mesh.dispose(run.run_id)
    assert (again.state, again.ended_at) == (RunState.CANCELLED, ended.ended_at)


async def test_of_runs_without_a_workflow_the_last_ones_are_remembered_by_who_may_see_them(
    running: RunningMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.runs.runs.MAX_ENDED", 2)
    mesh = running.mesh
    runs = [mesh.parallel([step("a", f"echo {number}")]) for number in range(3)]
    for run in runs:
        await run
    with pytest.raises(NotFound):
        await mesh.dispose(runs[0].run_id)
    for run in runs[1:]:
        assert (await mesh.dispose(run.run_id)).state is RunState.COMPLETED
        assert (await mesh.cancel(run.run_id)).state is RunState.COMPLETED


async def test_what_is_not_gone_in_time_is_named_and_can_be_waited_for_again(running: RunningMesh) -> None:
    mesh = running.mesh
    seconds = new_marker()
    run = mesh.parallel_resumable([stubborn(seconds)], "slow")
    task = await begun(running, run, seconds)
    with pytest.raises(DeadlineExceeded, match=rf"not gone within 0\.2 s: 1 step of {run.run_id}"):
        await mesh.dispose(run.run_id, timeout=0.2)
    assert (await mesh.dispose(run.run_id)).state is RunState.CANCELLED
    assert not sleeping(seconds)
    with pytest.raises(Cancelled):
        await task


async def test_a_run_that_has_ended_is_given_as_it_ended_and_one_that_never_was_is_not_found(
    running: RunningMesh,
) -> None:
    mesh = running.mesh
    run = mesh.parallel_resumable([step("a", "echo a")], "quick")
    await run
    assert (await mesh.dispose(run.run_id)).state is RunState.COMPLETED
    with pytest.raises(NotFound):
        await mesh.dispose("run-that-never-was")
    with pytest.raises(InvalidArgument, match="timeout"):
        await mesh.dispose(run.run_id, timeout=-1)
