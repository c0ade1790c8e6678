"""Scripts that go on without their callers: jobs of kind workflow, stopped and killed in every phase (C27, C31)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fanfold import Mesh, SyncMesh
from fanfold.errors import FailedPrecondition, InvalidArgument, Unavailable
from fanfold.model.job import JobState
from fanfold.model.run import EventDetail, RunEnded, RunState
from fanfold.model.script import StopReason
from fanfold.sdk.started import StartedWorkflow
from support.coordinators import MeshWithJobs, coordinators, mesh_with_jobs
from support.mesh import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

META = {"name": "a-test", "description": "for tests"}

WORK = """
const work = (x, end = `echo did ${x}`) => agent(`echo ${x} >> lines; ${end}`, {agent: 'shell', label: x});
const wait = (x) => work(x, `while [ ! -e go ]; do sleep 0.05; done; echo did ${x}`);
"""

TWO_PARTS = f"""{WORK}
phase('First');
const seen = [Math.random(), Date.now()];
const first = await parallel([() => work('a'), () => work('b', 'exit 3')]);
log('first part');
phase('Second');
return {{first, seen: [...seen, Math.random()], second: await wait('c'), last: await work('d' + seen[0])}};
"""


class Running(MeshWithJobs):
    """A mesh of processes, and what scripts do there."""

    __slots__ = ()

    def lines(self) -> list[str]:
        """What the steps have written."""
        path = self.workspace / "lines"
        return path.read_text().split() if path.exists() else []

    def go(self) -> None:
        """Let the steps end that wait."""
        (self.workspace / "go").touch()

    async def start(self, script: str, **changes: Any) -> StartedWorkflow:
        """A script that was started, asked for by the same request id until it can be had."""
        async with asyncio.timeout(40):
            while True:
                try:
                    return await self.mesh.start_workflow(script, meta=META, **{"parent": "./p", **changes})
                except Unavailable:
                    await asyncio.sleep(0.1)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with mesh_with_jobs(tmp_path) as up:
        yield Running(up.coordinators, up.registry, up.mesh)


async def log_of(mesh: Mesh, run: StartedWorkflow) -> list[str]:
    """The lines of a job's log, without their times."""
    pieces = [piece async for piece in mesh.jobs.read_output(run.id)]
    assert not any(piece.gap_bytes for piece in pieces)
    return [line.partition(" ")[2] for line in b"".join(piece.data for piece in pieces).decode().splitlines()]


@pytest.mark.contract("C26", "C28", "C31", "C36", "C37", "C44")
async def test_a_started_script_is_a_job_whose_log_and_result_anybody_of_its_owners_may_read_later(
    running: Running,
) -> None:
    mesh = running.mesh
    script = f"{WORK} phase('One'); log('hello\\nyou'); return [await work('a'), await work('b', 'exit 3'), args]"
    run = await running.start(script, args={"n": 3}, request_id="once")
    again = await running.start(script, args={"n": 3}, request_id="once")
    assert (again.id, again.run_id) == (run.id, run.run_id)
    result = await run.result()
    assert (result.stop_reason, result.agents_started) == (StopReason.COMPLETED, 2)
    assert result.value == ["did a\n", None, {"n": 3}]
    assert [(failure.label, failure.call, failure.failure.code.value) for failure in result.failures] == [
        ("b", 2, "AGENT_FAILED")
    ]
    job = await mesh.jobs.get(run.id)
    assert job.parent == "anonymous/p"
    assert (job.kind, job.label, job.state, job.detail) == (
        "workflow",
        "a-test",
        JobState.COMPLETED,
        "2/2 steps, 1 failed",
    )
    assert set(json.loads(await mesh.jobs.result(run.id))) == {
        "value",
        "stop_reason",
        "error",
        "agents_started",
        "failures",
    }
    log = await log_of(mesh, run)
    assert log[:3] == ["phase: One", "| hello you", "a: ok"]
    assert log[3].startswith("b: AGENT_FAILED")
    events = [event async for event in run.events(detail=EventDetail.OUTCOMES)]
    assert isinstance(events[-1], RunEnded)
    assert events[-1].script_result is not None
    assert events[-1].script_result.value is None, "whoever watches gets no value"
    later = await mesh.started_workflow(run.run_id)
    assert (await later.result()).value == result.value
    with pytest.raises(InvalidArgument, match="another request"):
        await running.start(script, args={"n": 4}, request_id="once")


@pytest.mark.contract("C24", "C26", "C35")
async def test_a_started_script_that_goes_wrong_is_a_failed_job_with_a_result(running: Running) -> None:
    run = await running.start("await agent('x', {agent: 'shell', lable: 1})")
    result = await run.result()
    assert result.stop_reason is StopReason.ERROR
    assert "did you mean label?" in result.error
    job = await running.mesh.jobs.get(run.id)
    assert job.state is JobState.FAILED
    assert "did you mean label?" in job.detail
    with pytest.raises(InvalidArgument) as wrong:
        await running.mesh.start_workflow("return (", meta=META, provider="nowhere")
    assert {each.field for each in wrong.value.violations} == {"script", "provider"}


PHASES = {
    "in mid-run": f"{WORK} await work('a'); await parallel(['b', 'c', 'd'].map((x) => () => wait(x)))",
    "in an endless loop": f"{WORK} await work('a'); while (true) {{}}",
    "with children that do not listen": f"{WORK} await work('a', 'trap \"\" TERM INT; while :; do sleep 1; done')",
}


@pytest.mark.contract("C27", "C31", "C38", "F1")
@pytest.mark.parametrize(
    ("phase", "through"),
    [
        ("in mid-run", "the registry"),
        ("in mid-run", "dispose"),
        ("in an endless loop", "the coordinator"),
        ("with children that do not listen", "dispose"),
    ],
)
async def test_a_started_script_is_stopped_wherever_it_is(running: Running, phase: str, through: str) -> None:
    run = await running.start(PHASES[phase])
    await until(lambda: "a" in running.lines(), "it runs")
    match through:
        case "the registry":
            await running.mesh.jobs.cancel(run.id, "enough")
        case "the coordinator":
            await run.cancel("enough")
        case _:
            assert (await run.dispose()).state is RunState.CANCELLED
            assert (await run.dispose()).run_id == run.run_id
    result = await asyncio.wait_for(run.result(), 40)
    assert result.stop_reason is StopReason.CANCELLED
    assert result.value is None
    job = await running.mesh.jobs.get(run.id)
    assert job.state is JobState.KILLED
    if through != "dispose":
        assert job.stop_reason == (await run.wait(timeout=20)).reason == "enough"


@pytest.mark.contract("C27", "C32")
@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.1])
async def test_cancelled_at_any_moment_of_its_start_nothing_of_it_is_left(running: Running, seconds: float) -> None:
    """The script never ends by itself, so it ends cancelled, and no job stays behind."""
    asked = asyncio.create_task(
        running.mesh.start_workflow(f"{WORK} await wait('a')", meta=META, request_id="r", parent="./p")
    )
    await asyncio.sleep(seconds)
    while not (runs := await running.mesh.runs()) and not asked.done():
        await asyncio.sleep(0.01)
    runs = runs or await running.mesh.runs()
    await running.mesh.cancel(runs[0].run_id, "too soon")
    run = await asked
    assert (await run.dispose()).state is RunState.CANCELLED
    job = await running.mesh.jobs.wait(run.id, timeout=30)
    assert job.state is JobState.KILLED
    assert [job.id for job in await running.mesh.jobs.list()] == [run.id]


@pytest.mark.contract("C19", "C29", "C31", "C43", "F6", "F7")
@pytest.mark.parametrize("how", ["killed", "drained"])
async def test_a_started_script_outlives_its_coordinator(running: Running, how: str) -> None:
    run = await running.start(TWO_PARTS)
    await until(lambda: "c" in running.lines(), "the second part runs")
    held_by = running.coordinators.of((await run.get()).coordinator)
    await (held_by.kill() if how == "killed" else held_by.stop(20.0))
    running.go()
    result = await asyncio.wait_for(run.result(), 60)
    assert result.stop_reason is StopReason.COMPLETED, result.error
    value = result.value
    assert (value["first"], value["second"]) == (["did a\n", None], "did c\n")
    assert value["last"] == f"did d{value['seen'][0]}\n"
    assert result.agents_started == 4
    assert Counter(running.lines()) == {"a": 1, "b": 1, "c": 1, f"d{value['seen'][0]}": 1}
    log = await log_of(running.mesh, run)
    assert sorted(line.partition(":")[0] for line in log) == sorted(
        ["phase", "phase", "| first part", "a", "b", "c", f"d{value['seen'][0]}"]
    )


@pytest.mark.contract("C31", "C38", "C42", "F6")
async def test_a_started_script_goes_on_while_the_registry_is_away(running: Running) -> None:
    run = await running.start(TWO_PARTS)
    await until(lambda: "c" in running.lines(), "the second part runs")
    await running.registry.kill()
    running.go()
    async with asyncio.timeout(40):
        while (await run.get()).waiting_on != "the job registry":
            await asyncio.sleep(0.05)
    await running.registry.start()
    result = await asyncio.wait_for(run.result(), 60)
    assert result.stop_reason is StopReason.COMPLETED
    assert (await running.mesh.jobs.get(run.id)).state is JobState.COMPLETED
    assert (await run.wait(timeout=20)).state is RunState.COMPLETED


@pytest.mark.contract("C31", "F6", "C44")
@pytest.mark.parametrize("seconds", [0.0, 0.04])
async def test_killed_at_any_moment_of_its_start_a_script_is_started_once(running: Running, seconds: float) -> None:
    script = f"{WORK} return await work('a')"
    asked = asyncio.create_task(running.start(script, request_id="r"))
    await asyncio.sleep(seconds)
    await running.coordinators.kill()
    for name in ("c1", "c2"):
        await running.coordinators.restart(name)
    with suppress(Unavailable):
        await asked
    run = await running.start(script, request_id="r")
    assert (await asyncio.wait_for(run.result(), 60)).value == "did a\n"
    assert running.lines() == ["a"]
    jobs = await running.mesh.jobs.list(kind="workflow")
    assert [job.id for job in jobs if job.state is JobState.COMPLETED] == [run.id]


@pytest.mark.contract("C29", "C16", "F7")
async def test_a_started_script_is_resumed_by_its_workflow_id_also_when_it_was_edited(running: Running) -> None:
    first = await running.start(f"{WORK} return [await work('a'), await work('b', 'test -e mended')]", workflow_id="w")
    assert (await first.result()).value == ["did a\n", None]
    (running.workspace / "mended").touch()
    edited = f"{WORK} log('edited'); return [await work('b', 'test -e mended; echo ok'), await work('a')]"
    second = await running.start(edited, workflow_id="w")
    assert (await second.result()).value == ["ok\n", "did a\n"]
    assert Counter(running.lines()) == {"a": 1, "b": 2}
    assert any(line == "a: ok, recorded before" for line in await log_of(running.mesh, second))


@pytest.mark.contract("C31", "C29")
async def test_ordinary_code_starts_and_resumes_scripts_too(running: Running) -> None:
    def ask() -> tuple[Any, Any, Any]:
        with SyncMesh(running.coordinators.servers, registry=running.registry.address) as mesh:
            started = mesh.start_workflow(f"{WORK} return await work('a')", meta=META)
            again = mesh.started_workflow(started.run_id)
            known = [
                mesh.workflow(f"{WORK} return [await work('b'), await agent({end})]", meta=META, workflow_id="w")
                for end in ("1", "'exit 0', {agent: 'shell'}")
            ]
            return started.result(), again.result(), known

    started, again, (broken, known) = await asyncio.to_thread(ask)
    assert started.value == again.value == "did a\n"
    assert broken.stop_reason is StopReason.ERROR
    assert known.value[0] == "did b\n"
    assert Counter(running.lines()) == {"a": 1, "b": 1}


async def test_a_mesh_without_a_registry_or_a_journal_refuses_to_start_scripts(tmp_path: Path) -> None:
    async with coordinators(tmp_path, 1) as up, Mesh(up.servers) as mesh:
        with pytest.raises(FailedPrecondition, match="no job registry"):
            await mesh.start_workflow("return 1", meta=META)
