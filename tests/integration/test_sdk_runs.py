"""Runs from Python: cancelled and waited for, listed, watched; and meshes of several servers (C27, C28, C33, C43)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from fanfold import Mesh, SyncMesh
from fanfold.errors import Cancelled, FailedPrecondition, InvalidArgument, NotFound, OutOfRange, Unavailable
from fanfold.model.run import EventDetail, RunEnded, RunEvent, RunKind, RunStarted, RunState
from support.coordinators import coordinators, journal_in
from support.mesh import RunningMesh, running_mesh, until
from support.noted import begun, ended, noted, ran, step

pytestmark = pytest.mark.process

NOWHERE = "127.0.0.1:1"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningMesh]:
    (tmp_path / "workspace").mkdir()
    async with running_mesh(tmp_path / "workspace", coordinator=journal_in(tmp_path)) as mesh:
        yield mesh


async def in_flight(running: RunningMesh) -> int:
    return sum(view.steps_in_flight for view in await running.mesh.nodes())


@pytest.mark.contract("C16", "C27", "F1")
async def test_a_cancelled_run_is_gone_when_the_caller_hears_of_it_and_can_be_resumed(running: RunningMesh) -> None:
    run = running.mesh.parallel_resumable(noted(20, held_from=8), "audit")
    task = await begun(run)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await in_flight(running) == 0
    assert run.has_ended
    kept = await running.mesh.run(run.run_id)
    assert (kept.state, kept.reason) == (RunState.CANCELLED, "its caller cancelled it")
    assert kept.steps.succeeded == len(ended(run))
    (running.workspace / "go").touch()
    again = running.mesh.parallel_resumable(noted(20, held_from=8), "audit")
    assert all(outcome.success for outcome in await again)
    assert again.recalled == ended(run)
    assert {name: ran(running.workspace)[name] for name in again.recalled} == dict.fromkeys(again.recalled, 1)


@pytest.mark.contract("C27")
async def test_a_run_that_is_cancelled_before_it_was_heard_of_does_not_hold_its_workflow(running: RunningMesh) -> None:
    for delay in (0.0, 0.001, 0.005, 0.02):
        run = running.mesh.parallel_resumable(noted(3), "audit")
        task = asyncio.ensure_future(run)
        await asyncio.sleep(delay)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not await running.mesh.runs(states=["pending", "running"])
    assert all(outcome.success for outcome in await running.mesh.parallel_resumable(noted(3), "audit"))


@pytest.mark.contract("C27")
async def test_what_a_callback_raises_and_leaving_the_iteration_cancel_the_run(running: RunningMesh) -> None:
    def fails(_event: object) -> None:
        raise LookupError("mine")

    raising = running.mesh.parallel_resumable(noted(3, seconds=60), "audit", on_event=fails)
    with pytest.raises(LookupError, match="mine"):
        await raising
    assert (await running.mesh.run(raising.run_id)).state is RunState.CANCELLED
    left = running.mesh.parallel_resumable(noted(3, seconds=60), "audit")
    async with aclosing(aiter(left)) as events:  # type: ignore[type-var]  # it is a generator
        await anext(events)
    assert (await running.mesh.run(left.run_id)).state is RunState.CANCELLED
    assert await in_flight(running) == 0


@pytest.mark.contract("C19", "C27")
async def test_a_run_is_cancelled_through_another_coordinator_when_its_own_is_gone(tmp_path: Path) -> None:
    async with coordinators(tmp_path) as up, Mesh(up.servers) as mesh:
        run = mesh.parallel_resumable(noted(40, held_from=8), "audit")
        task = await begun(run)
        await up.of((await mesh.run(run.run_id)).coordinator).kill()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 40)
        assert run.has_ended
        assert (await mesh.run(run.run_id)).state is RunState.CANCELLED
        assert len(ended(run)) < 40


@pytest.mark.contract("C27", "F1")
async def test_an_attached_run_is_gone_too_when_its_cancelled_caller_hears_of_it(running: RunningMesh) -> None:
    run = running.mesh.parallel(noted(20, held_from=8))
    task = await begun(run)
    (listed,) = await running.mesh.runs()
    assert (listed.run_id, listed.workflow_id, listed.attached) == (run.run_id, "", True)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run.has_ended
    assert await in_flight(running) == 0
    assert await running.mesh.runs() == []


@pytest.mark.contract("C27")
@pytest.mark.parametrize("workflow_id", ["", "audit"])
async def test_somebody_elses_cancel_is_told_with_its_reason(running: RunningMesh, workflow_id: str) -> None:
    mesh, specs = running.mesh, noted(20, held_from=8)
    run = mesh.parallel_resumable(specs, workflow_id) if workflow_id else mesh.parallel(specs)
    task = await begun(run)
    assert (await mesh.cancel(run.run_id, "enough")).run_id == run.run_id
    with pytest.raises(Cancelled, match="the run was cancelled: enough"):
        await asyncio.wait_for(task, 20)
    assert len(ended(run)) >= 8
    if workflow_id:
        assert (await mesh.cancel(run.run_id, "too late")).reason == "enough"


@pytest.mark.contract("C28", "F22")
async def test_a_run_is_watched_from_any_number_without_gap_or_duplicate(tmp_path: Path) -> None:
    async with coordinators(tmp_path) as up, Mesh(up.servers) as mesh:
        run = mesh.parallel_resumable(noted(30), "audit")
        task = await begun(run)
        early, late = (
            asyncio.ensure_future(numbers(mesh, run.run_id)),
            asyncio.ensure_future(numbers(mesh, run.run_id, 7)),
        )
        await up.of((await mesh.run(run.run_id)).coordinator).kill()
        await asyncio.wait_for(task, 60)
        all_of_them = await asyncio.wait_for(early, 20)
        assert all_of_them == list(range(1, len(all_of_them) + 1))
        assert await asyncio.wait_for(late, 20) == all_of_them[6:]
        assert await numbers(mesh, run.run_id, len(all_of_them)) == all_of_them[-1:]
        assert await numbers(mesh, run.run_id, len(all_of_them) + 1) == []
        with pytest.raises(OutOfRange, match="the last is"):
            await numbers(mesh, run.run_id, len(all_of_them) + 2)
        events = [event async for event in mesh.watch(run.run_id, detail=EventDetail.OUTCOMES)]
        assert isinstance(events[0], RunStarted)
        assert isinstance(events[-1], RunEnded)
        assert events[-1].run.steps.succeeded == 30


async def numbers(mesh: Mesh, run_id: str, first: int = 0) -> list[int]:
    """Numbers of the events that a watcher is told; a step's progress has none."""
    watched = mesh.watch(run_id, from_sequence=first, detail=EventDetail.LIFECYCLE)
    return [event.sequence async for event in watched if event.sequence]


async def test_only_runs_that_are_there_and_keep_events_are_watched(running: RunningMesh) -> None:
    with pytest.raises(NotFound):
        await numbers(running.mesh, "run-nobody-knows")
    with pytest.raises(InvalidArgument, match="from_sequence"):
        await numbers(running.mesh, "run-nobody-knows", -1)
    run = running.mesh.parallel(noted(20, held_from=8))
    task = await begun(run, 1)
    with pytest.raises(FailedPrecondition) as caught:
        await numbers(running.mesh, run.run_id)
    assert caught.value.reason == "NOT_JOURNALED"
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.contract("C33")
async def test_runs_are_listed_newest_first_by_workflow_and_state(running: RunningMesh) -> None:
    mesh = running.mesh
    ids = []
    for number in range(5):
        run = mesh.parallel_resumable([step("a", "true")], f"w{number % 2}")
        await run
        ids.append(run.run_id)
    failing = mesh.parallel_resumable(noted(3, seconds=60), "w0")
    task = asyncio.ensure_future(failing)
    await until(lambda: failing.run_id != "", "it runs")
    assert [run.run_id for run in await mesh.runs()] == [failing.run_id, *reversed(ids)]
    assert [run.run_id for run in await mesh.runs(workflow_id="w1")] == [ids[3], ids[1]]
    assert [run.run_id for run in await mesh.runs(states=["running", "pending"])] == [failing.run_id]
    assert [run.run_id for run in await mesh.runs(limit=2)] == [failing.run_id, ids[4]]
    with pytest.raises(InvalidArgument, match="states: must be of pending, running"):
        await mesh.runs(states=["asleep"])
    task.cancel()
    await asyncio.wait([task])
    last = (await mesh.runs(workflow_id="w1"))[-1]
    assert (last.kind, last.state, last.steps.total) == (RunKind.PARALLEL, RunState.COMPLETED, 1)
    with pytest.raises(NotFound):
        await mesh.run("run-nobody-knows")


async def test_whatever_is_asked_is_asked_of_a_server_that_is_there(running: RunningMesh) -> None:
    there = running.coordinator.address
    for servers in (f"{NOWHERE},{there}", [NOWHERE, there]):
        async with Mesh(servers) as mesh:
            assert (await mesh.parallel([step("a", "echo hi")]))[0].output == "hi\n"
            assert mesh.server == there
        async with Mesh(servers) as mesh:
            assert (await mesh.execute(step("a", "echo hi"))).output == "hi\n"
        async with Mesh(servers) as mesh:
            assert (await mesh.parallel_resumable([step("a", "echo hi")], "audit"))[0].output == "hi\n"
        async with Mesh(servers) as mesh:
            assert len(await mesh.nodes()) == 1
    async with Mesh(f"{NOWHERE},127.0.0.1:2") as mesh:
        with pytest.raises(Unavailable):
            await mesh.nodes()
        with pytest.raises(Unavailable):
            await mesh.parallel([step("a", "echo hi")])
    for wrong in ("here,there", [there, ""], ""):
        if wrong:
            with pytest.raises(InvalidArgument, match="server"):
                Mesh(wrong)
    with pytest.raises(InvalidArgument, match="reconnect_timeout"):
        Mesh(there, reconnect_timeout=-1)


async def test_the_same_from_ordinary_code(running: RunningMesh) -> None:
    def ordinary() -> None:
        with SyncMesh(running.coordinator.address) as mesh:
            result = mesh.parallel_resumable([step("a", "echo hi"), step("b", "false")], "release-audit")
            assert [o["success"] for o in result] == [True, False]
            assert [o["success"] for o in mesh.resume("release-audit")] == [True, False]
            run = mesh.runs(workflow_id="release-audit")[-1]
            assert mesh.run(run.run_id) == run
            events: list[RunEvent] = list(mesh.watch(run.run_id))
            assert [event.sequence for event in events] == list(range(1, len(events) + 1))
            for _ in mesh.watch(run.run_id, from_sequence=3):
                break
            assert mesh.cancel(run.run_id).state is RunState.COMPLETED

    await asyncio.wait_for(asyncio.to_thread(ordinary), 60)
