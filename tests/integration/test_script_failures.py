from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from coordinator.life import failed
from coordinator.scripts.engine.quickjs import QuickJsEngine
from fanfold.model.script import StopReason
from fanfold.model.step import AgentStepSpec, FailureCode, StepEnded, StepOutcome
from support.scripts import limits
from support.sessions import Player, begun, carried_out, succeeded

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[QuickJsEngine]:
    async with QuickJsEngine(limits(), spare=2) as running:
        yield running


# ---- C24: every cause

NOT_DONE = [
    *((f"agent('FAIL {code}')", code) for code in FailureCode if code is not FailureCode.QUOTA_EXHAUSTED),
    ("agent('RAISE oops')", FailureCode.INTERNAL),
    ("agent('LONG 3000000')", FailureCode.PAYLOAD_TOO_LARGE),
]


@pytest.mark.contract("C24", "F12")
@pytest.mark.parametrize(("call", "code"), NOT_DONE)
@pytest.mark.parametrize("form", ["await {}", "(await parallel([() => {}]))[0]", "(await pipeline([1], () => {}))[0]"])
async def test_a_step_that_fails_is_null_with_its_reason(
    engine: QuickJsEngine, call: str, code: FailureCode, form: str
) -> None:
    result, heard = await carried_out(engine, f"return [{form.format(call)}, await agent('sibling')]")
    assert result.value == [None, "sibling"]
    (failure,) = result.failures
    assert (failure.call, failure.failure.code) == (1, code)
    ended = next(event for _, event in heard.steps if isinstance(event, StepEnded))
    assert ended.outcome.success is ("LONG" in call)


@pytest.mark.contract("C24", "F12")
@pytest.mark.parametrize(
    ("thrown", "told"),
    [
        ("throw new Error('boo')", "Error: boo"),
        ("throw new RangeError('far')", "RangeError: far"),
        ("throw 'text'", "text"),
        ("throw null", "null"),
        ("throw undefined", "undefined"),
        ("throw {message: 'm', name: 'Forged'}", "Forged: m"),
        ("throw {t: 'fatal', message: 'forged', line: 1}", "Error: forged"),
        ("throw Object.create(TypeError.prototype, {message: {get() { throw 1 }}})", "something that cannot be"),
        ("null.x", "TypeError: cannot read property 'x' of null"),
        ("undefinedName()", "ReferenceError: "),
    ],
)
async def test_an_ordinary_error_in_a_thunk_or_stage_is_null_with_its_reason(
    engine: QuickJsEngine, thrown: str, told: str
) -> None:
    script = f"""return [
      await parallel([() => agent('a'), async () => {{ {thrown} }}, () => agent('b')]),
      await pipeline(['c'], (x) => agent(x), () => {{ {thrown} }}, () => agent('never')),
    ]"""
    result, heard = await carried_out(engine, script)
    assert result.value == [["a", None, "b"], [None]]
    assert result.agents_started == 3
    assert [failure.label for failure in result.failures] == ["parallel item 1", "pipeline item 0, stage 1"]
    for failure in result.failures:
        assert failure.failure.code is FailureCode.CRASHED
        assert failure.failure.message.startswith(told)
        assert failure.call == 0
    assert len(heard.logs) == 2


FATAL = [
    ("agent()", "agent(): the prompt must be text, not undefined"),
    ("agent(42)", "agent(): the prompt must be text, not a number"),
    ("agent(Promise.resolve('x'))", "agent(): the prompt must be text, not a promise"),
    ("agent(' ')", "agent(): the prompt must not be empty"),
    ("agent('x', 'y')", "agent(): the options must be an object, not a string"),
    ("agent('x', [])", "agent(): the options must be an object, not an array"),
    ("agent('x', null)", "agent(): the options must be an object, not null"),
    ("agent('x', Promise.resolve({}))", "agent(): the options are a promise; await it first"),
    ("agent('x', {shema: {}})", "agent(): options.shema: unknown field; did you mean schema?"),
    ("agent('x', {agnet: undefined})", "agent(): options.agnet: unknown field; did you mean agent?"),
    ("agent('x', {label: Promise.resolve('l')})", "options.label is a promise; await it first"),
    ("agent('x', {label: () => 'l'})", "options.label is a function, which JSON has not"),
    ("agent('x', {schema: {then() {}}})", "options.schema.then is a function, which JSON has not"),
    ("agent('x', {schema: {a: undefined}})", "options.schema.a is undefined, which JSON has not"),
    ("agent('x', {max_tokens: 5n})", "options.max_tokens is a BigInt, which JSON has not"),
    ("agent('x', {max_tokens: NaN})", "options.max_tokens is NaN, which JSON has not"),
    ("agent('x', {max_tokens: -1})", "options.max_tokens: must be greater than or equal to 0"),
    ("agent('x', {timeout_ms: 0})", "options.timeout_ms: must be greater than or equal to 1"),
    ("agent('x', {max_steps: 1.5})", "options.max_steps: must be a valid integer"),
    ("agent('x', {node_labels: new Map()})", "options.node_labels is an instance of Map, which JSON has not"),
    ("agent('x', {schema: 'string'})", "options.schema: must be a JSON Schema"),
    ("agent('x', {schema: {type: 'strnig'}})", "options.schema: $.type:"),
    ("agent('x', {schema: {$ref: 'https://example.org/s'}})", "options.schema: "),
    ("agent('x', {get label() { throw new Error('no') }})", "options cannot be read: Error: no"),
    ("parallel()", "parallel(): thunks must be an array, not undefined"),
    ("parallel([agent('x')])", "parallel(): thunks[0] must be a function, not a promise; it has begun already"),
    ("parallel([1])", "parallel(): thunks[0] must be a function, not a number"),
    ("parallel(new Array(2))", "parallel(): thunks[0] must be a function, not undefined"),
    ("parallel(new Array(4097).fill(() => 1))", "parallel() and pipeline() take at most 4,096 items a call, not 4,097"),
    ("pipeline({}, (x) => x)", "pipeline(): items must be an array, not an object"),
    ("pipeline([1])", "pipeline(): needs at least one stage"),
    ("pipeline([1], 'stage')", "pipeline(): stages[0] must be a function, not a string"),
    ("pipeline(new Array(4097).fill(1), () => 1)", "take at most 4,096 items a call, not 4,097"),
    ("phase()", "phase(): the title must be text, not undefined"),
    ("phase('')", "phase(): the title must be text, not empty"),
    ("agent('FAIL QUOTA_EXHAUSTED')", "the quota of a model provider is exhausted (FAIL QUOTA_EXHAUSTED: as the"),
]
CATCHES = [
    "return await {}",
    "try {{ await {} }} catch {{}} await agent('carries on'); return 'carried on'",
    "return await parallel([async () => {{ await {} }}, () => agent('WAIT 0.2')])",
    "try {{ await pipeline([1], async () => {{ await {} }}) }} catch (e) {{}} return 'carried on'",
    "(async () => {{ await {} }})().catch(() => {{}}); await agent('WAIT 0.3'); return 'carried on'",
]


@pytest.mark.contract("C24")
@pytest.mark.parametrize(("call", "error"), FATAL)
@pytest.mark.parametrize("form", CATCHES, ids=["returned", "caught", "parallel", "pipeline", "floating"])
async def test_what_is_written_wrong_ends_the_run_whatever_the_script_does(
    engine: QuickJsEngine, call: str, error: str, form: str
) -> None:
    result, _ = await carried_out(engine, form.format(call))
    assert result.stop_reason is StopReason.ERROR
    assert error in result.error
    assert result.value is None


@pytest.mark.contract("C24")
async def test_misuse_in_one_branch_ends_the_others_at_once(engine: QuickJsEngine) -> None:
    player = Player()
    script = "await parallel([() => agent('HANG'), () => agent('HANG'), async () => { await agent('x'); agent(1) }])"
    result, heard = await carried_out(engine, script, player)
    assert "must be text" in result.error
    assert player.running == 0
    ended = {call.number: event.outcome.failure for call, event in heard.steps if isinstance(event, StepEnded)}
    assert [failure.code for failure in ended.values() if failure] == [FailureCode.CANCELLED] * 2


@pytest.mark.contract("C24", "C25")
async def test_the_cap_on_agents_is_counted_here(engine: QuickJsEngine) -> None:
    script = "for (let i = 0; i < 9; i++) { try { await agent('x') } catch {} } return 'all'"
    result, _ = await carried_out(engine, script, max_total_agents=3)
    assert result.error == "line 1: agent(): the run may start at most 3 agents (max_total_agents)"
    assert result.agents_started == 3
    enough, _ = await carried_out(engine, script, max_total_agents=9)
    assert enough.value == "all"


@pytest.mark.contract("C24")
async def test_an_agent_is_required_where_there_is_no_default(engine: QuickJsEngine) -> None:
    result, _ = await carried_out(engine, "\n\nreturn agent('x')", default_agent="")
    assert result.error.startswith("line 3: agent(): options.agent: is required")


@pytest.mark.contract("C24", "C26")
@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("1n", "value is a BigInt"),
        ("[0, NaN]", "value[1] is NaN"),
        ("{a: [Infinity]}", "value.a[0] is Infinity"),
        ("{a: undefined}", "value.a is undefined"),
        ("[, 1]", "value[0] is undefined"),
        ("() => 1", "value is a function"),
        ("[Symbol('x')]", "value[0] is a symbol"),
        ("{[Symbol('x')]: 1}", "value has a symbol as a key"),
        ("new Map()", "value is an instance of Map"),
        ("{when: new Date()}", "value.when is an instance of Date"),
        ("new (class Own {})()", "value is an instance of Own"),
        ("[Promise.resolve(1)]", "value[0] is a promise"),
        ("new (class extends Array {})()", "value is an instance of a class"),
        ("(() => { const a = {}; a.b = [a]; return a })()", "value.b[0] contains itself"),
        ("(() => { let a = []; for (let i = 0; i < 300; i++) a = [a]; return a })()", "nests deeper than 200 levels"),
        ("['\\ud800']", "value[0] has a lone surrogate"),
        ("{get a() { throw new Error('no') }}", "value cannot be read: Error: no"),
        ("'x'.repeat(5000000)", "is larger than"),
        ("'x'.repeat(1100000)", "must be at most 1,048,576 bytes"),
    ],
)
async def test_a_value_that_is_not_lossless_json_is_an_error_with_its_path(
    engine: QuickJsEngine, value: str, error: str
) -> None:
    result, _ = await carried_out(engine, f"return {value}")
    assert result.stop_reason is StopReason.ERROR
    assert error in result.error


@pytest.mark.contract("C26")
async def test_a_value_is_read_once_and_an_absent_one_is_null(engine: QuickJsEngine) -> None:
    script = "let n = 0; return new Proxy({get a() { return ++n }, b: -0}, {})"
    assert (await carried_out(engine, script))[0].value == {"a": 1, "b": 0}
    assert (await carried_out(engine, "await agent('x')"))[0].value is None


@pytest.mark.contract("C26")
@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("throw new Error('x')", "line 1: the script threw Error: x"),
        ("\n  null.y", "line 2: the script threw TypeError: cannot read property 'y' of null"),
        ("await new Promise(() => {})", "the script waits for a promise that nobody settles"),
        ("(function f() { f() })()", "RangeError: Maximum call stack size exceeded"),
    ],
)
async def test_a_script_that_fails_is_a_result(engine: QuickJsEngine, script: str, error: str) -> None:
    result, _ = await carried_out(engine, script)
    assert (result.stop_reason, result.value) == (StopReason.ERROR, None)
    assert error in result.error


@pytest.mark.contract("F8", "C24")
async def test_after_the_quota_is_gone_nothing_is_started(engine: QuickJsEngine) -> None:
    player = Player(hint=2)
    script = """
    const calls = Array.from({length: 50}, (_, i) => agent(i === 1 ? 'FAIL QUOTA_EXHAUSTED' : 'WAIT 0.05'));
    return await Promise.all(calls)
    """
    result, _ = await carried_out(engine, script, player)
    assert result.stop_reason is StopReason.ERROR
    assert len(player.specs) <= 3
    assert FailureCode.QUOTA_EXHAUSTED in [failure.failure.code for failure in result.failures]


@pytest.mark.contract("F8", "C24")
async def test_a_run_whose_quota_is_gone_does_not_complete_though_no_answer_is_missed(
    engine: QuickJsEngine,
) -> None:
    async def answer(spec: AgentStepSpec) -> StepOutcome:
        if spec.prompt == "quick":
            return succeeded(spec, "done")
        await asyncio.sleep(0.02)
        return failed(spec, FailureCode.QUOTA_EXHAUSTED, "no more")

    script = "agent('slow'); const quick = await agent('quick'); for (let i = 0; i < 1e7; i++); return quick"
    async with begun(engine, script, Player(answer)) as (task, heard):
        told = 0

        async def until_told() -> None:
            nonlocal told
            told += 1
            await asyncio.sleep(0 if told == 1 else 60)  # what came of the other call is not durable yet

        heard.until_told = until_told  # type: ignore[method-assign]
        await asyncio.wait_for(task, 20)
    heard.check_lives()
    assert heard.result.stop_reason is StopReason.ERROR
    assert [each.failure.code for each in heard.result.failures] == [FailureCode.QUOTA_EXHAUSTED]


@pytest.mark.contract("C24", "C20")
async def test_a_call_that_nobody_waits_for_is_checked_before_the_run_is_decided(engine: QuickJsEngine) -> None:
    for _ in range(5):
        result, _ = await carried_out(engine, "agent('x', {schema: {type: 'nonsense'}}).catch(() => 1); return 'done'")
        assert result.stop_reason is StopReason.ERROR
        assert "options.schema: $.type" in result.error
        assert result.agents_started == 0
