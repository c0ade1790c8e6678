"""Resumable runs as a Python program sees them, over coordinators that die, drain and hand over (C16 to C19, C43)."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fanfold import Mesh
from fanfold.cli.child import Child
from fanfold.errors import Aborted, FailedPrecondition, InvalidArgument, NotFound, Unavailable
from fanfold.model.step import StepEnded, StepEvent, StepStarted
from fanfold.sdk.parallel import ParallelRun
from support.coordinators import Coordinators, coordinators, journal_in
from support.mesh import DEADLINE, RunningMesh, running_mesh, until
from support.noted import begun, ended, noted, ran, step
from support.proxy import proxied

pytestmark = pytest.mark.process

STEPS = 40
NAMES = sorted(f"s{n}" for n in range(STEPS))


@pytest.fixture
async def up(tmp_path: Path) -> AsyncIterator[Coordinators]:
    async with coordinators(tmp_path) as running:
        yield running


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningMesh]:
    (tmp_path / "workspace").mkdir()
    async with running_mesh(tmp_path / "workspace", coordinator=journal_in(tmp_path)) as mesh:
        yield mesh


async def holder_of(mesh: Mesh, run: ParallelRun) -> str:
    return (await mesh.run(run.run_id)).coordinator


def told(heard: list[StepEvent], kind: type[StepEvent]) -> list[str]:
    return sorted(event.task_id for event in heard if isinstance(event, kind))


@pytest.mark.contract("C16", "C19", "F6", "F7")
async def test_a_run_goes_on_when_its_coordinator_is_killed(up: Coordinators) -> None:
    heard: list[StepEvent] = []
    async with Mesh(up.servers) as mesh:
        run = mesh.parallel_resumable(noted(STEPS), "release-audit", on_event=heard.append)
        task = await begun(run)
        first = await holder_of(mesh, run)
        await up.of(first).kill()
        result = await asyncio.wait_for(task, 60)
        assert await holder_of(mesh, run) != first
    assert [outcome.output for outcome in result] == [f"out {n}\n" for n in range(STEPS)]
    assert ran(up.workspace) == Counter(NAMES)  # also those that ran meanwhile: they are adopted
    assert told(heard, StepStarted) == told(heard, StepEnded) == NAMES
    assert run.recalled == frozenset()


@pytest.mark.contract("C19", "C43")
async def test_a_run_moves_at_once_when_its_coordinator_is_to_stop(up: Coordinators) -> None:
    times: list[float] = []
    async with Mesh(up.servers) as mesh:
        run = mesh.parallel_resumable(
            noted(STEPS), "release-audit", on_event=lambda _event: times.append(time.monotonic())
        )
        task = await begun(run)
        first = up.of(await holder_of(mesh, run))
        asked_at = time.monotonic()
        stopping = asyncio.ensure_future(first.stop(20))
        result = await asyncio.wait_for(task, 60)
        await stopping
    assert all(outcome.success for outcome in result)
    after = [asked_at, *(at for at in times if at > asked_at)]
    assert max(late - early for early, late in itertools.pairwise(after)) < 3.0
    assert ran(up.workspace) == Counter(NAMES)


@pytest.mark.contract("C19")
async def test_a_run_goes_on_with_the_same_coordinator_when_that_is_back(tmp_path: Path) -> None:
    async with coordinators(tmp_path, 1) as up, Mesh(up.servers) as mesh:
        run = mesh.parallel_resumable(noted(20, held_from=8), "release-audit")
        task = await begun(run)
        recorded = ended(run)
        await up.of("c1").kill()
        await until(lambda: "cannot be reached" in run.waiting_on or "Socket closed" in run.waiting_on, "it is told")
        await up.restart("c1")
        (up.workspace / "go").touch()
        result = await asyncio.wait_for(task, 60)
        assert run.waiting_on == ""
    assert all(outcome.success for outcome in result)
    assert {name: ran(up.workspace)[name] for name in recorded} == dict.fromkeys(recorded, 1)


@pytest.mark.contract("C18", "F5")
async def test_a_second_coordinator_of_one_name_is_refused_and_disturbs_no_run(tmp_path: Path) -> None:
    journal = {"lease": 60.0}  # however busy the machine is, it is not over
    async with coordinators(tmp_path, 1, journal=journal) as up, Mesh(up.servers) as mesh:
        run = mesh.parallel_resumable(noted(20, held_from=8), "release-audit")
        task = await begun(run)
        file, log = tmp_path / "twin.yaml", tmp_path / "twin.log"
        file.write_text((tmp_path / "c1.yaml").read_text())
        twin = await Child.start("twin", ["coordinator", "--config", str(file)], log=log)
        with pytest.raises(FailedPrecondition):
            await twin.wait_until_ready()
        said = " ".join(log.read_text().split())
        assert f"name: the coordinator at {up.of('c1').address} is called 'c1' too" in said
        assert "Traceback" not in said
        (up.workspace / "go").touch()
        assert all(outcome.success for outcome in await asyncio.wait_for(task, 60))
        assert ran(up.workspace) == Counter(f"s{n}" for n in range(20))
        assert "run let go" not in up.of("c1").log.read_text()


@pytest.mark.contract("C42")
async def test_a_mesh_that_stays_away_is_given_up_and_what_had_come_is_kept(tmp_path: Path) -> None:
    async with coordinators(tmp_path, 1) as up, Mesh(up.servers, reconnect_timeout=1) as mesh:
        run = mesh.parallel_resumable(noted(20, held_from=8), "release-audit")
        task = await begun(run)
        await up.kill()
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await asyncio.wait_for(task, 20)
        assert time.monotonic() - began > 0.9
        assert len(ended(run)) >= 8
        assert not run.has_ended


async def test_a_mesh_that_was_never_there_is_told_at_once() -> None:
    async with Mesh("127.0.0.1:1,127.0.0.1:2") as mesh:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:\d cannot be reached"):
            async with asyncio.timeout(DEADLINE):
                await mesh.parallel_resumable(noted(1), "w")


@pytest.mark.contract("C16", "C18")
async def test_a_run_that_was_given_up_meanwhile_goes_on_as_another_one(tmp_path: Path) -> None:
    heard: list[StepEvent] = []
    async with (
        coordinators(tmp_path, 1, journal={"caller_grace": 0.5}) as up,
        proxied(up.servers) as proxy,
        Mesh(proxy.address) as mesh,
        Mesh(up.servers) as direct,
    ):
        run = mesh.parallel_resumable(noted(STEPS), "release-audit", on_event=heard.append)
        task = await begun(run)
        first, before = run.run_id, ended(run)
        proxy.hold_up()
        proxy.cut()
        await until_state(direct, first, "cancelled")
        proxy.heal()
        result = await asyncio.wait_for(task, 60)
        assert run.run_id != first
        assert not before & run.recalled
        states = {kept.run_id: str(kept.state) for kept in await direct.runs(workflow_id="release-audit")}
        assert states == {first: "cancelled", run.run_id: "completed"}
    assert [outcome.output for outcome in result] == [f"out {n}\n" for n in range(STEPS)]
    assert told(heard, StepEnded) == NAMES
    assert set(told(heard, StepStarted)) == set(NAMES)
    assert {name: ran(up.workspace)[name] for name in before} == dict.fromkeys(before, 1)


async def until_state(mesh: Mesh, run_id: str, state: str) -> None:
    async with asyncio.timeout(20):
        while (await mesh.run(run_id)).state != state:
            await asyncio.sleep(0.02)


@pytest.mark.contract("C18")
async def test_a_call_with_the_same_request_id_takes_the_run_over(running: RunningMesh) -> None:
    async with Mesh(running.coordinator.address) as two:
        former = running.mesh.parallel_resumable(noted(STEPS), "release-audit", request_id="mine")
        task = await begun(former)
        run = two.parallel_resumable(noted(STEPS), "release-audit", request_id="mine")
        result = await asyncio.wait_for(run, 60)
        with pytest.raises(Aborted) as caught:
            await asyncio.wait_for(task, 20)
        assert caught.value.reason == "TAKEN_OVER"
        assert run.run_id == former.run_id
    assert all(outcome.success for outcome in result)
    assert ran(running.workspace) == Counter(NAMES)


@pytest.mark.contract("C18")
async def test_a_workflow_is_held_by_one_request(running: RunningMesh) -> None:
    async with Mesh(running.coordinator.address) as two:
        task = await begun(running.mesh.parallel_resumable(noted(STEPS), "release-audit"))
        with pytest.raises(Aborted, match="since") as caught:
            await two.parallel_resumable(noted(STEPS), "release-audit")
        assert caught.value.reason == "WORKFLOW_HELD"
        assert all(outcome.success for outcome in await asyncio.wait_for(task, 60))


@pytest.mark.contract("C16", "F7")
async def test_a_later_call_runs_what_has_no_record(running: RunningMesh) -> None:
    specs = [*noted(3, seconds=0), step("bad", "test -e mended && echo mended")]
    mesh = running.mesh
    first = await mesh.parallel_resumable(specs, "release-audit")
    assert [outcome.success for outcome in first] == [True, True, True, False]
    (running.workspace / "mended").touch()
    run = mesh.parallel_resumable([*reversed(specs), step("new", "echo new")], "release-audit")
    again = await run
    assert [outcome.output for outcome in again] == ["mended\n", "out 2\n", "out 1\n", "out 0\n", "new\n"]
    assert run.recalled == {"s0", "s1", "s2"}
    assert ran(running.workspace) == Counter(["s0", "s1", "s2"])
    fresh = mesh.parallel_resumable(noted(3, seconds=0), "release-audit")
    await fresh
    assert fresh.recalled == frozenset()
    assert ran(running.workspace)["s0"] == 2


@pytest.mark.contract("C16")
async def test_a_workflow_is_resumed_without_its_steps_at_hand(running: RunningMesh) -> None:
    mesh = running.mesh
    with pytest.raises(NotFound, match="release-audit"):
        await mesh.resume("release-audit")
    await mesh.parallel_resumable([*noted(2, seconds=0), step("bad", "test -e mended")], "release-audit")
    (running.workspace / "mended").touch()
    run = mesh.resume("release-audit")
    assert [outcome.task_id for outcome in await run] == ["s0", "s1", "bad"]
    assert run.recalled == {"s0", "s1"}
    assert [outcome.success for outcome in run.outcomes if outcome] == [True] * 3


@pytest.mark.contract("C17")
async def test_what_is_refused_is_refused_with_its_reason(tmp_path: Path) -> None:
    async with running_mesh(tmp_path) as running:
        with pytest.raises(FailedPrecondition) as caught:
            await running.mesh.parallel_resumable(noted(1), "release-audit")
        assert caught.value.reason == "NO_JOURNAL"
        for workflow_id in ("", "two\nlines", "x" * 129, 5):
            with pytest.raises(InvalidArgument, match="workflow_id"):
                running.mesh.parallel_resumable(noted(1), workflow_id)  # type: ignore[arg-type]
        for budget in (-1, 1.5, "7", True):
            with pytest.raises(InvalidArgument, match="budget_tokens"):
                running.mesh.parallel_resumable(noted(1), "w", budget_tokens=budget)  # type: ignore[arg-type]
