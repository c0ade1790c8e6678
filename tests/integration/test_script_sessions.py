from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from coordinator.life import failed
from coordinator.scripts.engine.quickjs import QuickJsEngine
from coordinator.scripts.host.answers import Ended
from fanfold.model.script import StopReason
from fanfold.model.step import AgentStepSpec, FailureCode, StepEnded, StepOutcome, StepStarted, Usage
from support.mesh import until
from support.promptness import once_within
from support.scripts import limits
from support.sessions import Player, begun, carried_out, echo, succeeded

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[QuickJsEngine]:
    async with QuickJsEngine(limits(), spare=2) as running:
        yield running


# ---- values and globals


@pytest.mark.contract("C23")
async def test_agent_gives_text_a_value_with_schema_and_null_for_a_failure(engine: QuickJsEngine) -> None:
    script = """
    return [await agent('plain'), await agent('JSON a b', {schema: {type: 'object'}}), await agent('FAIL STALLED')]
    """
    result, _ = await carried_out(engine, script)
    assert result.value == ["plain", {"words": ["a", "b"]}, None]
    assert result.stop_reason is StopReason.COMPLETED
    assert result.agents_started == 3
    (failure,) = result.failures
    assert (failure.call, failure.line, failure.label) == (3, 2, "FAIL STALLED")
    assert (failure.failure.code, failure.failure.message) == (FailureCode.STALLED, "as the prompt says")


@pytest.mark.contract("C23", "C21")
async def test_options_make_the_step_that_they_say(engine: QuickJsEngine) -> None:
    script = """
    await agent('the prompt', {agent: 'writer', label: 'L', phase: 'P', description: 'D', schema: true, max_steps: 7,
      max_tokens: 9, timeout_ms: 1500, node_labels: {zone: 'a', pool: 'mine'}});
    await agent('\\n  first line  \\nsecond');
    """
    player = Player()
    result, heard = await carried_out(engine, script, player, default_agent="default", node_labels={"pool": "fast"})
    assert result.error == ""
    first, second = player.specs
    assert (first.agent, first.description, first.prompt) == ("writer", "D", "the prompt")
    assert (first.max_steps, first.output_schema, first.parent_session_id) == (7, True, "alice/s")
    assert (first.policy.max_tokens, first.policy.timeout) == (9, 1.5)
    assert first.policy.node_labels == {"zone": "a", "pool": "fast"}
    assert (second.agent, second.description) == ("default", "first line")
    labels = [(call.label, call.phase) for call, event in heard.steps if isinstance(event, StepStarted)]
    assert labels == [("L", "P"), ("first line", "")]


@pytest.mark.contract("C23")
async def test_a_phase_is_fixed_when_the_call_is_made_also_within_concurrent_pipelines(engine: QuickJsEngine) -> None:
    script = """
    phase('One');
    const slow = agent('WAIT 0.2');
    await pipeline(['a', 'b'],
      async (x) => { phase('Stage ' + x); const p = agent(x); phase('Two'); return await p },
      (x) => agent(x + x));
    await slow;
    """
    _, heard = await carried_out(engine, script)
    phases = {call.label: call.phase for call, _ in heard.steps}
    assert phases == {"WAIT 0.2": "One", "a": "Stage a", "b": "Stage b", "aa": "Two", "bb": "Two"}
    assert heard.phases == ["One", "Stage a", "Two", "Stage b", "Two"]


@pytest.mark.contract("C23", "F13")
@pytest.mark.parametrize("args", [None, True, 0, -1.5, "", "é😀", [], [1, [2]], {}, {"a": {"b": None}}])
async def test_args_of_every_json_type_are_seen_as_they_are(engine: QuickJsEngine, args: object) -> None:
    result, _ = await carried_out(engine, "return {args, type: typeof args}", args=args)
    assert result.value["args"] == args
    assert type(result.value["args"]) is type(args)


@pytest.mark.contract("C23")
async def test_slots_are_given_in_order_and_follow_the_hint(engine: QuickJsEngine) -> None:
    player = Player(hint=3)
    script = "await Promise.all(Array.from({length: 12}, (_, i) => agent('WAIT 0.02', {label: `${i}`})))"
    _, heard = await carried_out(engine, script, player)
    started = [call.label for call, event in heard.steps if isinstance(event, StepStarted)]
    assert started == [str(index) for index in range(12)]
    assert player.most == 3


@pytest.mark.contract("C23", "C12", "C14")
async def test_combinators_keep_the_order_of_what_they_are_given(engine: QuickJsEngine) -> None:
    script = """
    return [
      await parallel([() => agent('WAIT 0.05'), () => 'plain', async () => agent('b'), () => undefined]),
      await pipeline([3, 1, 2], (previous, item, index) => [previous, item, index], (p, item, i) => agent(`${p} ${i}`)),
      await pipeline(['x', 'y'], (x) => x === 'x' ? null : agent(x), (x) => x + '!'),
      await parallel([]), await pipeline([], () => 1),
    ]
    """
    result, _ = await carried_out(engine, script)
    assert result.value == [
        ["WAIT 0.05", "plain", "b", None],
        ["3,3,0 0", "1,1,1 1", "2,2,2 2"],
        [None, "y!"],
        [],
        [],
    ]


@pytest.mark.contract("C23", "C13")
async def test_the_budget_is_seen_as_it_is_spent_and_refuses_what_does_not_fit(engine: QuickJsEngine) -> None:
    async def spend(spec: AgentStepSpec) -> StepOutcome:
        return succeeded(spec, usage=Usage(input_tokens=30, output_tokens=10, requests=1))

    script = """
    const seen = [[budget.total, budget.spent(), budget.remaining()]];
    while (budget.remaining() >= 40) {
      await agent('x', {max_tokens: 40});
      seen.push([budget.spent(), budget.remaining()]);
    }
    return [seen, await agent('too much', {max_tokens: 40})]
    """
    result, _ = await carried_out(engine, script, Player(spend), budget=100)
    assert result.value == [[[100, 0, 100], [40, 60], [80, 20]], None]
    assert [failure.failure.code for failure in result.failures] == [FailureCode.BUDGET_EXHAUSTED]
    unlimited, _ = await carried_out(engine, "return [budget.total, budget.spent(), budget.remaining() === Infinity]")
    assert unlimited.value == [None, 0, True]


@pytest.mark.contract("C23", "C30")
async def test_there_is_nothing_else_of_the_host(engine: QuickJsEngine) -> None:
    names = [
        "process",
        "require",
        "module",
        "exports",
        "Deno",
        "Bun",
        "global",
        "window",
        "self",
        "fetch",
        "XMLHttpRequest",
        "WebSocket",
        "setTimeout",
        "setInterval",
        "setImmediate",
        "performance",
        "Atomics",
        "SharedArrayBuffer",
        "WeakRef",
        "FinalizationRegistry",
        "print",
        "std",
        "os",
        "scriptArgs",
        "navigator",
        "crypto",
        "__write",
        "__ends",
        "__deliver",
        "__settle",
        "importScripts",
    ]
    result, _ = await carried_out(engine, "return args.filter((name) => name in globalThis)", args=names)
    assert result.value == []


@pytest.mark.contract("C23")
async def test_console_and_structured_clone_are_there_in_a_simple_form(engine: QuickJsEngine) -> None:
    script = """
    console.error('a', 1, {b: [2]}, null, undefined, new Error('e'), Symbol('s'), () => 1 && 2);
    const original = {a: [1]}; const copy = structuredClone(original); copy.a.push(2);
    try { structuredClone(() => 1) } catch (error) { log(error.message) }
    return [original, copy]
    """
    result, heard = await carried_out(engine, script)
    assert result.value == [{"a": [1]}, {"a": [1, 2]}]
    assert heard.logs[0].startswith('a 1 {"b":[2]} null undefined Error: e a symbol ')
    assert heard.logs[1] == "structuredClone(): value is a function, which JSON has not"


# ---- C26 to C28: ends


@pytest.mark.contract("C26")
async def test_agents_started_counts_queued_calls_of_a_script_that_ended_by_itself(engine: QuickJsEngine) -> None:
    script = "for (let i = 0; i < 5; i++) agent('HANG'); await agent('x'); return 1"

    async def answer(spec: AgentStepSpec) -> StepOutcome:
        return await echo(spec)

    result, heard = await carried_out(engine, script.replace("await agent('x'); ", ""), Player(answer, hint=2))
    assert result.agents_started == 5
    assert heard.calls == 5


@pytest.mark.contract("C28")
async def test_calls_that_the_script_did_not_await_are_ended_and_told_before_the_end(engine: QuickJsEngine) -> None:
    player = Player()
    script = "agent('HANG', {label: 'stray'}); await agent('x'); return 'done'"
    result, heard = await carried_out(engine, script, player)
    assert result.value == "done"
    assert player.running == 0
    (stray,) = result.failures
    assert (stray.label, stray.failure.code) == ("stray", FailureCode.CANCELLED)
    assert "did not wait for it" in stray.failure.message
    assert sum(isinstance(event, StepEnded) for _, event in heard.steps) == 2


@pytest.mark.contract("C27")
@pytest.mark.parametrize(
    "script",
    [
        "while (true) {}",
        "await agent('HANG')",
        "for (let i = 0; i < 40; i++) agent('HANG'); while (true) {}",
        "await parallel([() => agent('HANG'), () => agent('HANG')])",
        "await agent('WAIT 0.01'); for (;;) await null",
    ],
)
async def test_a_cancelled_run_is_settled_within_a_second_whatever_it_does(engine: QuickJsEngine, script: str) -> None:
    async def cancelled() -> float:
        player = Player(hint=4)
        async with begun(engine, script, player) as (task, heard):
            await asyncio.sleep(0.1)
            began = time.monotonic()
            task.cancel()
            await until(lambda: bool(heard.results), "it is settled")
            took = time.monotonic() - began
            with pytest.raises(asyncio.CancelledError):
                await task
        heard.check_lives()
        assert heard.result.stop_reason is StopReason.CANCELLED
        assert heard.result.agents_started <= 4
        assert player.running == 0
        return took

    await once_within(1.0, cancelled)


@pytest.mark.contract("C27")
async def test_a_child_that_will_not_end_does_not_hold_the_result_up(engine: QuickJsEngine) -> None:
    gate = asyncio.Event()

    async def stubborn(spec: AgentStepSpec) -> StepOutcome:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        raise asyncio.CancelledError

    async with begun(engine, "await agent('x')", Player(stubborn)) as (task, heard):
        await until(lambda: bool(heard.steps), "the step has started")
        task.cancel()
        await until(lambda: bool(heard.results), "it is settled", 1.0)
        assert not task.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    heard.check_lives()


@pytest.mark.contract("C27")
@pytest.mark.parametrize("moment", [0.0, 0.001, 0.005, 0.02])
async def test_a_run_can_be_cancelled_at_any_moment(engine: QuickJsEngine, moment: float) -> None:
    async with begun(engine, "for (let i = 0; i < 200; i++) await agent(`${i}`)") as (task, heard):
        await asyncio.sleep(moment)
        task.cancel()
        await asyncio.wait([task])
    heard.check_lives()
    assert heard.result.stop_reason is StopReason.CANCELLED


@pytest.mark.contract("C30")
async def test_a_script_that_does_not_come_to_rest_is_ended(engine: QuickJsEngine) -> None:
    result, _ = await carried_out(engine, "log('begins'); while (true) {}", turn_seconds=0.5)
    assert result.error == "the script computed for 0.5 s without waiting for anything"
    endless, _ = await carried_out(engine, "for (;;) await null", turn_seconds=0.5)
    assert "0.5 s" in endless.error


async def test_a_script_that_waits_long_is_not_ended(engine: QuickJsEngine) -> None:
    result, _ = await carried_out(engine, "return await agent('WAIT 0.8')", turn_seconds=0.5)
    assert result.value == "WAIT 0.8"


@pytest.mark.contract("C30")
async def test_lines_without_end_are_not_told(engine: QuickJsEngine) -> None:
    result, heard = await carried_out(engine, "for (;;) log('x')")
    assert result.error == "a script may write at most 10,000 lines"
    assert len(heard.logs) == 10_000


@pytest.mark.contract("C24")
async def test_failures_are_told_up_to_a_thousand(engine: QuickJsEngine) -> None:
    result, _ = await carried_out(
        engine, "await parallel(new Array(1500).fill(() => { throw new Error('x') })); return 1"
    )
    assert result.value == 1
    assert len(result.failures) == 1000


async def test_nothing_of_a_run_is_left(engine: QuickJsEngine) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        await carried_out(engine, "agent('HANG'); return await agent('x')")
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 4


# ---- C29: replay


async def recorded(engine: QuickJsEngine, script: str, player: Player | None = None) -> list[Ended]:
    """The answers that a script was given, in their order."""
    _, heard = await carried_out(engine, script, player)
    return [Ended(call.number, event.outcome) for call, event in heard.steps if isinstance(event, StepEnded)]


@pytest.mark.contract("C29", "F7")
async def test_a_replayed_script_is_given_its_answers_again_in_their_order(engine: QuickJsEngine) -> None:
    script = """
    const order = [];
    const call = async (x) => { const answer = await agent(x); order.push([x, answer, Date.now(), Math.random()]); };
    await Promise.all(['WAIT 0.05', 'a', 'FAIL CRASHED', 'WAIT 0.02', 'b'].map(call));
    return order;
    """
    first, heard = await carried_out(engine, script)
    answers = [Ended(call.number, event.outcome) for call, event in heard.steps if isinstance(event, StepEnded)]
    assert [row[0] for row in first.value] != ["WAIT 0.05", "a", "FAIL CRASHED", "WAIT 0.02", "b"]
    for known in (5, 3, 0):
        player = Player()
        again, _ = await carried_out(engine, script, player, replayed=answers[:known])
        assert again.value[:known] == first.value[:known]
        assert len(player.specs) == 5 - known
        assert again.agents_started == 5
    again, heard = await carried_out(engine, script, replayed=answers)
    assert not heard.steps, "nothing is told again"
    assert [failure.call for failure in again.failures] == [3]


@pytest.mark.contract("C29")
@pytest.mark.parametrize(
    ("edited", "error"),
    [
        ("await agent('a'); await agent('other'); return 1", "call 2 (other) asks for something else"),
        ("await agent('a', {max_steps: 3}); await agent('b'); return 1", "call 1 (a) asks for something else"),
        ("await agent('a'); await new Promise(() => {})", "waits for a promise"),
        ("const held = agent('a'); agent('c'); await held; return 1", "call 2 (c) asks for something else"),
    ],
)
async def test_a_script_that_diverges_is_told_the_first_call_that_differs(
    engine: QuickJsEngine, edited: str, error: str
) -> None:
    answers = await recorded(engine, "await agent('a'); await agent('b'); return 1")
    result, _ = await carried_out(engine, edited, replayed=answers)
    assert result.stop_reason is StopReason.ERROR
    assert error in result.error
    if "call" in error:
        assert "diverged" in result.error


@pytest.mark.contract("C29")
async def test_a_call_that_is_not_made_again_is_named(engine: QuickJsEngine) -> None:
    answers = await recorded(engine, "await agent('a'); await agent('b'); return 1")
    script = "agent('HANG'); await agent('x'); return 1"
    only_second = [Ended(3, answers[1].outcome)]
    result, _ = await carried_out(engine, script, Player(hint=1), replayed=only_second)
    assert "call 3" in result.error
    assert "is not made again" in result.error


@pytest.mark.contract("C29", "F7")
async def test_answers_of_every_kind_are_the_same_when_they_are_given_ahead_of_their_calls(
    engine: QuickJsEngine,
) -> None:
    """Text and values, also null ones, with and without a schema, and failures, of more calls than go ahead."""
    script = """
    Object.prototype.schema = {};
    const schema = {};
    const kinds = [[{}, 'text'], [{schema}, 'value'], [{schema}, 'null'], [{schema: null}, 'both'], [{}, 'fails']];
    const answers = [];
    for (let i = 0; i < 120; i++) {
      for (const [options, kind] of kinds) answers.push(await agent(`${kind} ${i}`, options), Date.now());
    }
    return answers;
    """

    async def answer(spec: AgentStepSpec) -> StepOutcome:
        match spec.prompt.partition(" ")[0]:
            case "value":
                return succeeded(spec, "a value", structured={"value": spec.prompt})
            case "null":
                return succeeded(spec, "null")
            case "both":
                return succeeded(spec, spec.prompt, structured=["not", "asked", "for"])
            case "fails":
                return failed(spec, FailureCode.AGENT_FAILED, "no")
        return succeeded(spec, spec.prompt)

    first, heard = await carried_out(engine, script, Player(answer))
    assert first.value[0:10:2] == ["text 0", {"value": "value 0"}, None, "both 0", None]
    answers = [Ended(call.number, event.outcome) for call, event in heard.steps if isinstance(event, StepEnded)]
    assert len(answers) == 600
    player = Player(answer)
    again, _ = await carried_out(engine, script, player, replayed=answers[:599])
    assert again.value[:-1] == first.value[:-1]
    assert len(again.failures) == len(first.failures) == 120
    assert {each.failure.code for each in again.failures} == {FailureCode.AGENT_FAILED}
    assert [spec.prompt for spec in player.specs] == ["fails 119"]


@pytest.mark.contract("C29")
async def test_a_script_that_stops_asking_amid_answers_given_ahead_is_told_the_first_call_that_is_missing(
    engine: QuickJsEngine,
) -> None:
    answers = await recorded(engine, "for (let i = 0; i < 400; i++) await agent(`${i}`)", Player())
    stops = "agent('HANG'); for (let i = 0; i < 20; i++) await agent(`${i}`); await new Promise(() => {})"
    moved = [Ended(ended.number + 1, ended.outcome) for ended in answers]
    result, _ = await carried_out(engine, stops, replayed=moved)
    assert result.stop_reason is StopReason.ERROR
    assert "call 22 (echo) is not made again" in result.error
