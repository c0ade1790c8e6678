"""Runs that go on without their caller, over coordinators and a registry that are killed and come back (C31, F6)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from fanfold import Mesh
from fanfold.errors import Cancelled, DeadlineExceeded, FailedPrecondition, Unavailable
from fanfold.model.job import Job, JobState
from fanfold.model.run import EventDetail, RunEnded, RunState
from fanfold.sdk.started import StartedRun
from support.coordinators import MeshWithJobs, coordinators, mesh_with_jobs
from support.mesh import until
from support.noted import ran, step

pytestmark = [pytest.mark.process, pytest.mark.timeout(90)]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[MeshWithJobs]:
    async with mesh_with_jobs(tmp_path) as running:
        yield running


def work(name: str, seconds: float = 0.0) -> dict[str, str]:
    """A step that leaves a line when it begins and one when it has run."""
    return step(name, f"echo {name} >> begun; sleep {seconds}; echo {name} >> ran")


def begun(workspace: Path) -> bool:
    """Whether any step has begun."""
    return (workspace / "begun").exists()


async def started(running: MeshWithJobs, steps: list[dict[str, str]]) -> StartedRun:
    """The run of these steps with the request id "r", asked for until it can be had."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await running.mesh.start(steps, request_id="r")
            except Unavailable:
                await asyncio.sleep(0.1)


async def settled(running: MeshWithJobs, run: StartedRun) -> Job:
    return await running.mesh.jobs.wait(run.id, timeout=30)


async def log_of(running: MeshWithJobs, run: StartedRun) -> list[str]:
    pieces = [piece async for piece in running.mesh.jobs.read_output(run.id)]
    assert not any(piece.gap_bytes for piece in pieces)
    lines = b"".join(piece.data for piece in pieces).decode().splitlines()
    return sorted(line.partition(" ")[2] for line in lines)


async def holder(running: MeshWithJobs, run: StartedRun) -> str:
    return (await run.get()).coordinator


@pytest.mark.contract("C31", "C36", "C37", "C44")
async def test_a_started_run_is_found_followed_and_read_through_the_registry(running: MeshWithJobs) -> None:
    mesh = running.mesh
    steps = [work(name) for name in ("a", "b", "c")]
    run = await mesh.start(steps, request_id="once")
    again = await mesh.start(steps, request_id="once")
    assert (again.id, again.run_id) == (run.id, run.run_id)
    followed = [piece.data async for piece in mesh.jobs.read_output(run.id, follow=True)]
    assert b"".join(followed).count(b": ok\n") == 3
    job = await settled(running, run)
    assert (job.kind, job.state, job.detail) == ("parallel", JobState.COMPLETED, "3/3 steps")
    result = await run.result()
    assert [outcome.task_id for outcome in result] == ["a", "b", "c"]
    kept = json.loads(await mesh.jobs.result(run.id))
    assert [outcome["task_id"] for outcome in kept["outcomes"]] == ["a", "b", "c"]
    assert [job.id for job in await mesh.jobs.list(kind="parallel")] == [run.id]
    shown = await mesh.run(run.run_id)
    assert (shown.attached, shown.job_id, shown.state) == (False, run.id, RunState.COMPLETED)
    events = [event async for event in run.events(detail=EventDetail.OUTCOMES)]
    assert isinstance(events[-1], RunEnded)


@pytest.mark.contract("C27", "C31", "C38")
@pytest.mark.parametrize("through", ["the registry", "the coordinator", "dispose"])
async def test_a_started_run_is_stopped_from_both_sides(running: MeshWithJobs, through: str) -> None:
    run = await running.mesh.start([work("a", seconds=60)])
    await until(lambda: begun(running.workspace), "the step runs")
    match through:
        case "the registry":
            await running.mesh.jobs.cancel(run.id, "enough")
        case "the coordinator":
            await run.cancel("enough")
        case _:
            disposed = await run.dispose()
            assert disposed.state is RunState.CANCELLED
            assert (await run.dispose()).run_id == run.run_id
    job = await settled(running, run)
    assert job.state is JobState.KILLED
    with pytest.raises(Cancelled):
        await run.result()
    if through != "dispose":
        assert job.stop_reason == (await run.get()).reason == "enough"


@pytest.mark.contract("C19", "C31", "C43", "F6")
@pytest.mark.parametrize("how", ["killed", "drained"])
async def test_a_started_run_outlives_its_coordinator(running: MeshWithJobs, how: str) -> None:
    steps = [work(name, seconds=0.2) for name in "abcdefgh"] + [work("long", seconds=6)]
    run = await running.mesh.start(steps)
    await until(lambda: ran(running.workspace).total() >= 4, "some steps have ended")
    held_by = running.coordinators.of(await holder(running, run))
    await (held_by.kill() if how == "killed" else held_by.stop(20.0))
    job = await settled(running, run)
    assert (job.state, job.detail) == (JobState.COMPLETED, "9/9 steps")
    assert ran(running.workspace) == dict.fromkeys([*"abcdefgh", "long"], 1)
    assert await log_of(running, run) == sorted(f"{name}: ok" for name in [*"abcdefgh", "long"])
    assert len(await run.result()) == 9


@pytest.mark.contract("C31", "C38", "C42", "F6")
async def test_a_run_goes_on_while_the_registry_is_away_and_settles_when_it_is_back(running: MeshWithJobs) -> None:
    run = await running.mesh.start([work(name, seconds=0.5) for name in "abc"])
    await running.registry.kill()
    async with asyncio.timeout(30):
        while (await run.get()).waiting_on != "the job registry":
            await asyncio.sleep(0.05)
    assert sorted(ran(running.workspace)) == ["a", "b", "c"]
    assert (await run.get()).state is RunState.RUNNING
    with pytest.raises(DeadlineExceeded, match="the job registry"):
        await run.dispose(timeout=0.5)
    await running.registry.start()
    job = await settled(running, run)
    assert job.state is JobState.COMPLETED
    assert (await run.wait(timeout=20)).state is RunState.COMPLETED
    assert await log_of(running, run) == ["a: ok", "b: ok", "c: ok"]


@pytest.mark.contract("C38")
async def test_a_stop_that_was_asked_for_while_the_coordinator_was_away_is_heard_by_the_next_one(
    tmp_path: Path,
) -> None:
    async with mesh_with_jobs(tmp_path, 1) as running:
        mesh, up = running.mesh, running.coordinators
        run = await mesh.start([work("a", seconds=60)])
        await until(lambda: begun(up.workspace), "the step runs")
        await up.of("c1").kill()
        job = await mesh.jobs.cancel(run.id, "enough")
        assert job.state is JobState.STOPPING
        await up.restart("c1")
        job = await mesh.jobs.wait(run.id, timeout=30)
        assert (job.state, job.stop_reason) == (JobState.KILLED, "enough")
        assert (await run.wait(timeout=20)).state is RunState.CANCELLED


@pytest.mark.contract("C31", "C32")
async def test_without_its_registry_nothing_is_started(running: MeshWithJobs) -> None:
    await running.registry.kill()
    with pytest.raises(Unavailable):
        await running.mesh.start([work("a")], request_id="r")
    assert not begun(running.workspace)
    await running.registry.start()
    run = await started(running, [work("a")])
    assert (await settled(running, run)).state is JobState.COMPLETED
    assert ran(running.workspace) == {"a": 1}


async def test_a_mesh_without_a_registry_refuses_to_start_runs(tmp_path: Path) -> None:
    async with coordinators(tmp_path, 1) as up, Mesh(up.servers) as mesh:
        with pytest.raises(FailedPrecondition, match="no job registry"):
            await mesh.start([work("a")])


@pytest.mark.contract("C31", "F6", "C44")
@pytest.mark.parametrize("seconds", [0.0, 0.015, 0.04])
@pytest.mark.parametrize("victim", ["coordinators", "registry"])
async def test_killed_at_any_moment_of_its_start_a_run_is_started_once(
    running: MeshWithJobs, victim: str, seconds: float
) -> None:
    """Whatever the killed one had come to, asking again by the same request id gives one run, done once."""
    steps = [work("a"), work("b")]
    asked = asyncio.create_task(running.mesh.start(steps, request_id="r"))
    await asyncio.sleep(seconds)
    if victim == "registry":
        await running.registry.kill()
        await running.registry.start()
    else:
        await running.coordinators.kill()
        for name in ("c1", "c2"):
            await running.coordinators.restart(name)
    with suppress(Unavailable):
        await asked
    run = await started(running, steps)
    job = await settled(running, run)
    assert job.state is JobState.COMPLETED, job
    assert ran(running.workspace) == {"a": 1, "b": 1}
    jobs = await running.mesh.jobs.list(kind="parallel")
    assert [each.id for each in jobs if each.state is JobState.COMPLETED] == [run.id]
