"""Workflow scripts over a real mesh, as a Python program asks for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from fanfold import Mesh, SyncMesh
from fanfold.clients.coordinator import CoordinatorClient
from fanfold.errors import Aborted, FailedPrecondition, FieldViolation, InvalidArgument, ResourceExhausted
from fanfold.model.run import RunEnded, RunEvent, RunKind, RunState
from fanfold.model.script import Script, ScriptEvent, ScriptEventKind, StopReason
from fanfold.model.script_checks import parse_meta
from fanfold.model.step import FailureCode
from support.coordinators import journal_in
from support.mesh import RunningMesh, running_mesh, until
from support.promptness import once_within

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]

META = {"name": "a-test", "description": "for tests", "phases": [{"title": "One"}]}
SETTINGS = {
    "scripts": {
        "spare": 1,
        "default_agent": "echo",
        "max_total_agents": 40,
        "providers": {"fast": {"pool": "fast"}, "none": {"pool": "none"}},
        "source_bytes": 10_000,
        "most_runs": 6,
    }
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningMesh]:
    workspace = tmp_path_factory.mktemp("workspace")
    async with running_mesh(workspace, coordinator=SETTINGS, node={"labels": {"pool": "fast"}}) as mesh:
        yield mesh


async def events_of(run: Any) -> list[ScriptEvent]:
    return [event async for event in run.events()]


@pytest.mark.contract("C28", "C26")
async def test_observers_are_told_the_six_kinds_with_id_and_meta_and_without_the_value(running: RunningMesh) -> None:
    script = "phase('One'); log('line'); return [await agent('a', {label: 'L'}), await agent('b', {agent: 'gives-up'})]"
    async with running.mesh.workflow(script, meta=META) as run:
        result = await run.result()
        events = await events_of(run)
        late = [event async for event in run.events(from_sequence=events[3].sequence)]
    kinds = ScriptEventKind
    told = [event.kind for event in events]
    ends = [kinds.AGENT_START, kinds.AGENT_END]
    assert told == [kinds.START, kinds.PHASE, kinds.LOG, *ends, *ends, kinds.END]
    assert {event.run_id for event in events} == {run.id}
    assert {event.meta for event in events} == {parse_meta(META)}
    assert [event.sequence for event in events] == sorted({event.sequence for event in events})
    assert late == events[3:]
    assert (events[3].label, events[3].phase, events[3].call) == ("L", "One", 1)
    assert result.value == ["a", None]
    end = events[-1].result
    assert end is not None
    assert (end.value, end.agents_started, end.failures) == (None, 2, result.failures)
    assert [failure.failure.code for failure in result.failures] == [FailureCode.AGENT_FAILED]


@pytest.mark.contract("C21", "C22", "C25")
async def test_everything_that_is_wrong_is_told_at_once_before_any_event(running: RunningMesh) -> None:
    asked = running.mesh.workflow(
        "let a;\nlet b = = 1", meta=META, parent="x/y", provider="nowhere", max_total_agents=41, args={"a": 1}
    )
    with pytest.raises(InvalidArgument) as refused:
        async with asked:
            pass
    assert {violation.field for violation in refused.value.violations} == {
        "script",
        "parent",
        "provider",
        "max_total_agents",
    }
    place = next(violation for violation in refused.value.violations if violation.field == "script")
    assert place.description.startswith("line 2, column 9: SyntaxError")


@pytest.mark.contract("C21", "C22", "F13")
async def test_what_cannot_be_sent_is_refused_with_its_path(running: RunningMesh) -> None:
    with pytest.raises(InvalidArgument) as refused:
        running.mesh.workflow("return 1", meta={"nmae": "x", "description": "d"}, args={1, 2})
    assert {violation.field for violation in refused.value.violations} == {"meta.name", "meta.nmae", "args"}
    too_large = running.mesh.workflow("x" * 10_001, meta=META)
    with pytest.raises(InvalidArgument) as large:
        async with too_large:
            pass
    assert large.value.violations == (FieldViolation("script", "must be at most 10,000 bytes (scripts.source_bytes)"),)


@pytest.mark.contract("C25")
async def test_the_callers_knobs_hold(running: RunningMesh) -> None:
    loop = "let n = 0; try { for (;;) { await agent('x'); n++ } } catch {} return n"
    async with running.mesh.workflow(loop, meta=META, max_total_agents=3) as run:
        result = await run.result()
    assert "at most 3 agents" in result.error
    for provider, value in (("fast", "x"), ("none", None)):
        async with running.mesh.workflow("return await agent('x')", meta=META, provider=provider) as run:
            result = await run.result()
        assert result.value == value
    assert [failure.failure.code for failure in result.failures] == [FailureCode.UNPLACEABLE]


@pytest.mark.contract("C13", "C23")
async def test_a_budget_is_kept_and_told(running: RunningMesh) -> None:
    script = "await agent('30', {agent: 'spends', max_tokens: 40}); return [budget.total, budget.spent()]"
    async with running.mesh.workflow(script, meta=META, budget_tokens=100) as run:
        result = await run.result()
        assert run.budget is not None
        assert (run.budget.limit, run.budget.spent) == (100, 30)
    assert result.value == [100, 30]


@pytest.mark.contract("C27")
@pytest.mark.parametrize("script", ["while (true) {}", "await agent('60', {agent: 'waits'})"])
async def test_a_cancelled_script_settles_within_a_second_and_the_first_reason_is_kept(
    running: RunningMesh, script: str
) -> None:
    async def cancelled() -> float:
        async with running.mesh.workflow(script, meta=META) as run:
            await asyncio.sleep(0.2)
            began = time.monotonic()
            await run.cancel("the first")
            await run.cancel("the second")
            result = await run.result()
            took = time.monotonic() - began
            assert result.stop_reason is StopReason.CANCELLED
            await run.dispose()
            await run.dispose()
        kept = await running.mesh.run(run.id)
        assert (kept.state, kept.reason) == (RunState.CANCELLED, "the first")
        return took

    await once_within(1.0, cancelled)


@pytest.mark.contract("C27")
async def test_a_script_can_be_cancelled_before_its_first_line(running: RunningMesh) -> None:
    async with CoordinatorClient(running.coordinator.address) as client:
        script = Script(source="await agent('60', {agent: 'waits'})", meta=parse_meta(META), parent="./s")
        for _ in range(5):
            call = client.script(script)
            seen: list[RunEvent] = []
            while events := await call.read():
                if not seen:
                    await client.cancel_run(events[0].run_id, "at once")  # type: ignore[union-attr]
                seen += events
            end = seen[-1]
            assert isinstance(end, RunEnded)
            assert end.script_result is not None
            assert end.script_result.stop_reason is StopReason.CANCELLED
            assert (end.run.state, end.run.reason) == (RunState.CANCELLED, "at once")


@pytest.mark.contract("C27", "F1")
async def test_leaving_the_block_ends_the_script_and_its_agents(running: RunningMesh) -> None:
    async with running.mesh.workflow("await agent('sleep 60; :', {agent: 'shell'})", meta=META) as run:
        await until(lambda: any("sleep" in c.name() for c in psutil.Process().children(recursive=True)), "it sleeps")
    assert not any("sleep" in child.name() for child in psutil.Process().children(recursive=True))
    assert run.has_ended


@pytest.mark.contract("C27")
async def test_a_script_whose_caller_is_gone_is_ended(running: RunningMesh) -> None:
    gone = Mesh(running.coordinator.address)
    async with gone:
        run = gone.workflow("await agent('60', {agent: 'waits'})", meta=META)
        await run.__aenter__()
        runs = [listed.run_id for listed in await running.mesh.runs()]
        assert run.id in runs
    await until(lambda: run._is_over, "its call has ended")
    async with asyncio.timeout(10):
        while run.id in [listed.run_id for listed in await running.mesh.runs()]:
            await asyncio.sleep(0.05)


async def test_a_running_script_is_listed_with_its_kind(running: RunningMesh) -> None:
    async with running.mesh.workflow("await agent('60', {agent: 'waits'})", meta=META) as run:
        async with asyncio.timeout(10):
            while not (listed := await running.mesh.run(run.id)).steps.running:
                await asyncio.sleep(0.02)
        assert (listed.kind, listed.state, listed.steps.total) == (RunKind.SCRIPT, RunState.RUNNING, 1)


@pytest.mark.contract("C39")
@pytest.mark.parametrize("workflow", ["", "nightly-"])
async def test_more_scripts_than_may_run_are_refused_with_the_limit(tmp_path: Path, workflow: str) -> None:
    settings = {**SETTINGS, **journal_in(tmp_path)}
    async with running_mesh(tmp_path, coordinator=settings) as running, asyncio.TaskGroup() as tasks:
        enough = asyncio.Event()

        async def hold(number: int) -> None:
            workflow_id = workflow and f"{workflow}{number}"
            script = "await agent('60', {agent: 'waits'})"
            async with running.mesh.workflow(script, meta=META, workflow_id=workflow_id) as run:
                await enough.wait()
                await run.cancel()

        held = [tasks.create_task(hold(number)) for number in range(6)]
        async with asyncio.timeout(20):
            while len(await running.mesh.runs()) < 6:
                await asyncio.sleep(0.02)
        with pytest.raises(ResourceExhausted, match=r"scripts\.most_runs"):
            async with running.mesh.workflow("return 1", meta=META, workflow_id=workflow and "one-more"):
                pass
        enough.set()
        await asyncio.wait(held)


@pytest.mark.contract("C44")
async def test_a_request_id_that_is_in_use_starts_no_second_script(running: RunningMesh) -> None:
    async with running.mesh.workflow("await agent('60', {agent: 'waits'})", meta=META, request_id="r-1") as run:
        with pytest.raises(Aborted):
            async with running.mesh.workflow("return 1", meta=META, request_id="r-1"):
                pass
        assert [each.run_id for each in await running.mesh.runs(states=["running"])] == [run.id]


@pytest.mark.contract("C17", "C41")
async def test_a_script_is_not_detached_without_a_journal(running: RunningMesh) -> None:
    with pytest.raises(FailedPrecondition, match="no journal"):
        await running.mesh.start_workflow("return 1", meta=META)


async def test_ordinary_code_gets_the_result(running: RunningMesh) -> None:
    def ask() -> object:
        with SyncMesh(running.coordinator.address) as mesh:
            heard: list[ScriptEvent] = []
            result = mesh.workflow("return await agent('x')", meta=META, on_event=heard.append)
            return result.value, [event.kind.value for event in heard]

    assert await asyncio.to_thread(ask) == ("x", ["start", "agent_start", "agent_end", "end"])


@pytest.mark.contract("C23")
async def test_scripts_share_the_mesh_and_none_hears_of_another(running: RunningMesh, tmp_path: Path) -> None:
    async def one(number: int) -> object:
        script = "return await parallel(args.map((x) => () => agent(x)))"
        words = [f"{number}-{index}" for index in range(5)]
        async with running.mesh.workflow(script, meta=META, args=words) as run:
            return (await run.result()).value == words

    assert all(await asyncio.gather(*(one(number) for number in range(5))))
