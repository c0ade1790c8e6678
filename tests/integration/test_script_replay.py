"""Scripts that outlive their coordinator: replayed by another one, and resumed by their callers (C29, C16, F7)."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from coordinator.scripts.engine.engine import EngineFailed, ScriptStart
from coordinator.scripts.engine.process import QuickJsProcess
from coordinator.scripts.engine.quickjs import QuickJsEngine
from fanfold import Mesh
from fanfold.errors import FailedPrecondition
from fanfold.model.run import RunEnded, RunState
from fanfold.model.script import ScriptEvent, ScriptEventKind, StopReason
from support.mesh import coordinator_alone, until
from support.pair import pair

pytestmark = [pytest.mark.process, pytest.mark.contract("C29")]

META = {"name": "a-test", "description": "for tests"}
kinds = ScriptEventKind

WORK = """
const work = (x, end = `echo did ${x}`) => agent(`echo ${x} >> lines; ${end}`, {agent: 'shell', label: x});
const wait = (x) => work(x, `while [ ! -e go ]; do sleep 0.05; done; echo did ${x}`);
const fail = (x) => work(x, 'test -e mended && echo mended || exit 3');
"""


async def told(run: Any) -> list[ScriptEvent]:
    return [event async for event in run.events()]


@pytest.mark.contract("F7", "C28", "C19", "C43")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "drained"])
async def test_a_script_whose_coordinator_is_lost_is_gone_on_with_by_another(
    tmp_path: Path, how: signal.Signals
) -> None:
    script = f"""{WORK}
    phase('First');
    const seen = [Math.random(), Date.now()];
    const first = await parallel([() => work('a'), () => work('b'), () => fail('c')]);
    log('first part', Date.now() >= seen[1]);
    seen.push(Math.random(), Date.now());
    phase('Second');
    const second = await pipeline(['d', 'e'], (x) => x === 'e' ? wait(x) : work(x), (answer, x) => {{
      if (x === 'd') throw new Error('no');
      return answer;
    }});
    return {{seen, first, second, third: await work('f' + seen[2])}};
    """
    async with pair(tmp_path) as two, Mesh([two.first.address, two.second]) as mesh:
        asked = mesh.workflow(script, meta=META, workflow_id="audit")
        async with asked as run:
            events: list[ScriptEvent] = []

            async def follow() -> None:
                async for event in run.events():
                    events.append(event)

            following = asyncio.create_task(follow())
            await until(lambda: "e" in two.lines(), "the last step of the second part runs")
            await until(lambda: any("no" in event.message for event in events), "the item that threw was told")
            two.process.send_signal(how)
            (two.workspace / "go").touch()
            result = await asyncio.wait_for(run.result(), 40)
            await asyncio.wait_for(following, 10)
    assert result.stop_reason is StopReason.COMPLETED, result.error
    value = result.value
    assert [answer and answer.strip() for answer in value["first"]] == ["did a", "did b", None]
    assert value["second"][0] is None
    assert value["second"][1].strip() == "did e"
    assert value["third"].strip() == f"did f{value['seen'][2]}"
    assert result.agents_started == 6
    assert sorted(failure.failure.code.value for failure in result.failures) == ["AGENT_FAILED", "CRASHED"]
    for kind in (kinds.AGENT_START, kinds.AGENT_END):
        assert sorted(event.call for event in events if event.kind is kind) == [1, 2, 3, 4, 5, 6]
    assert [event.phase for event in events if event.kind is kinds.PHASE] == ["First", "Second"]
    assert len([event for event in events if event.kind is kinds.LOG]) == 2
    assert [event.sequence for event in events] == sorted({event.sequence for event in events})
    assert Counter(two.lines()).most_common(1)[0][1] == 1, "no step was begun a second time"


@pytest.mark.contract("C16")
async def test_a_caller_resumes_an_edited_script_and_repeats_no_success(tmp_path: Path) -> None:
    first = f"{WORK} return await parallel([() => work('a'), () => work('b'), () => work('a'), () => fail('c')])"
    edited = f"""{WORK}
    log('edited');
    return await parallel([() => fail('c'), () => work('b'), () => work('new'), async () => (await work('a')) + '!'])
    """
    async with pair(tmp_path) as two, Mesh(two.second) as mesh:
        async with mesh.workflow(first, meta=META, workflow_id="audit") as run:
            value = (await run.result()).value
        assert [answer and answer.strip() for answer in value] == ["did a", "did b", "did a", None]
        (two.workspace / "mended").touch()
        async with mesh.workflow(edited, meta=META, workflow_id="audit") as run:
            result = await run.result()
        assert [answer.replace("\n", "") for answer in result.value] == ["mended", "did b", "did new", "did a!"]
    assert Counter(two.lines()) == {"a": 2, "b": 1, "c": 2, "new": 1}


@pytest.mark.contract("C18")
async def test_the_same_request_is_told_its_result_again(tmp_path: Path) -> None:
    async with pair(tmp_path) as two, Mesh(two.second) as mesh:
        for _ in range(2):
            script = f"{WORK} return (await work('a')).trim()"
            async with mesh.workflow(script, meta=META, workflow_id="w", request_id="r", parent="./p") as run:
                assert (await run.result()).value == "did a"
                events = [event.kind for event in await told(run)]
            assert events == [kinds.START, kinds.AGENT_START, kinds.AGENT_END, kinds.END]
    assert two.lines() == ["a"]


@pytest.mark.contract("C24", "C26", "C28")
async def test_a_journaled_script_that_fails_or_is_cancelled_has_a_result(tmp_path: Path) -> None:
    async with pair(tmp_path) as two, Mesh(two.second) as mesh:
        async with mesh.workflow(f"{WORK} await work('a'); agent(1)", meta=META, workflow_id="w1") as run:
            result = await run.result()
        assert result.stop_reason is StopReason.ERROR
        assert "must be text" in result.error
        async with mesh.workflow(f"{WORK} await wait('x')", meta=META, workflow_id="w2") as run:
            async for event in run.events():
                if event.kind is kinds.AGENT_START:
                    break
            await run.cancel("enough")
            result = await run.result()
            assert result.stop_reason is StopReason.CANCELLED
            ended = [event.kind for event in await told(run)]
        assert ended.count(kinds.AGENT_START) == ended.count(kinds.AGENT_END) == 1


@pytest.mark.contract("C27", "C18", "F1")
async def test_a_cancelled_script_has_its_result_at_once_and_its_block_ends_when_its_agents_are_gone(
    tmp_path: Path,
) -> None:
    stubborn = f"{WORK} await work('a', 'trap \"\" TERM INT; echo $$ > pid; while :; do sleep 0.1; done')"
    async with pair(tmp_path, stop_grace=3.0) as two, Mesh(two.second) as mesh:
        async with mesh.workflow(stubborn, meta=META, workflow_id="w") as run:
            await until((two.workspace / "pid").exists, "its agent runs")
            async for event in run.events():
                if event.kind is kinds.AGENT_START:
                    break
            await run.cancel("enough")
            result = await run.result()
            assert (result.stop_reason, result.agents_started) == (StopReason.CANCELLED, 1)
            ended = [event.kind for event in await told(run)]
            assert ended.count(kinds.AGENT_START) == ended.count(kinds.AGENT_END) == 1
            assert (await mesh.run(run.id)).state is RunState.CANCELLED
            process = Path("/proc", (two.workspace / "pid").read_text().strip())
            assert process.exists(), "it does not listen, and has some time to"
            async with mesh.workflow(f"{WORK} return await work('b')", meta=META, workflow_id="w") as other:
                assert not process.exists(), "the workflow's next run begins when nothing of this one is left"
                assert (await other.result()).value == "did b\n"
        assert not process.exists()


@pytest.mark.contract("C19", "C24")
async def test_a_script_that_is_taken_over_where_no_engine_starts_goes_on_where_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has begun, so it is no error of the script's; whoever has an engine goes on with it, later the same one."""
    start, refused = QuickJsEngine.start, 0

    async def broken(engine: QuickJsEngine, asked: ScriptStart) -> QuickJsProcess:
        nonlocal refused
        refused += 1
        if refused == 1:
            raise EngineFailed("no process can be had")
        return await start(engine, asked)

    monkeypatch.setattr(QuickJsEngine, "start", broken)
    monkeypatch.setattr("coordinator.runs.holding.LEFT_SECONDS", 1.0)
    async with pair(tmp_path) as two, Mesh([two.first.address, two.second]) as mesh:
        script = f"{WORK} return [await work('a'), await wait('b')]"
        async with mesh.workflow(script, meta=META, workflow_id="w") as run:
            await until(lambda: "b" in two.lines(), "the second call runs")
            two.process.kill()
            await until(lambda: refused == 1, "the other one has tried to take it over")
            (two.workspace / "go").touch()
            result = await asyncio.wait_for(run.result(), 60)
    assert (result.stop_reason, result.value) == (StopReason.COMPLETED, ["did a\n", "did b\n"]), result.error
    assert two.lines() == ["a", "b"]
    assert refused >= 2


@pytest.mark.contract("C28")
async def test_whoever_watches_a_script_is_not_told_its_value(tmp_path: Path) -> None:
    async with pair(tmp_path) as two, Mesh(two.second) as mesh:
        async with mesh.workflow("return 'secret value'", meta=META, workflow_id="w") as run:
            assert (await run.result()).value == "secret value"
        watched = [event async for event in mesh.watch(run.id)]
    assert "secret value" not in repr(watched)
    end = watched[-1]
    assert isinstance(end, RunEnded)
    assert end.script_result is not None
    assert end.script_result.stop_reason is StopReason.COMPLETED


@pytest.mark.contract("C17")
async def test_without_a_journal_it_is_refused() -> None:
    async with coordinator_alone() as serving, Mesh(serving.address) as mesh:
        with pytest.raises(FailedPrecondition):
            async with mesh.workflow("return 1", meta=META, workflow_id="w"):
                pass
