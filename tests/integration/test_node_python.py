"""Python agents with a process of their own: what they answer, how they fail, how they are stopped."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from fanfold.model.step import (
    FailureCode,
    SourceAnchor,
    StepFailure,
    TextWritten,
    ToolFinished,
    TurnFinished,
    Usage,
)
from integration.node_harness import CLEAN_ENVIRONMENT, python_agent, running_node

pytestmark = pytest.mark.process


async def test_a_plain_function_runs_in_the_main_thread(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        assert (await node.run("plain", "Hello")).output == "Hello in MainThread"


async def test_any_json_value_is_a_result_and_its_text_the_output(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        for agent in ("value", "value-shared"):
            for text in ('{"a": [1, 2.5, true, null, "é"]}', "[]", "0", "false", "null"):
                outcome = await node.run(agent, text, schema=True)
                assert outcome.output == text
                assert outcome.structured == json.loads(text)
                assert outcome.success


@pytest.mark.contract("C2", "C4")
@pytest.mark.parametrize("agent", ["full_result", "full_result-shared"])
async def test_a_full_result_tells_usage_and_what_was_read(tmp_path: Path, agent: str) -> None:
    (tmp_path / "facts.txt").write_text("facts")
    async with running_node(tmp_path) as node:
        outcome = await node.run(agent, schema={"type": "object"})
    assert outcome.output == "as told"
    assert outcome.structured == {"answer": 42}
    assert outcome.usage == Usage(input_tokens=10, output_tokens=5, requests=2)
    assert outcome.source_anchors == (
        SourceAnchor(tool="search", url_or_path="https://example.org/page"),
        SourceAnchor(tool="read", url_or_path="facts.txt"),
    )


@pytest.mark.contract("C20")
async def test_without_a_schema_nothing_is_structured(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        outcome = await node.run("value", '{"a": 1}')
    assert outcome.structured is None
    assert outcome.output == '{"a": 1}'


@pytest.mark.contract("C11")
@pytest.mark.parametrize("agent", ["tells", "tells-shared"])
async def test_progress_is_told_in_order(tmp_path: Path, agent: str) -> None:
    async with running_node(tmp_path) as node:
        life = node.start(agent)
        await life.outcome()
    assert life.progress == [
        TextWritten(text="once "),
        ToolFinished(name="grep", success=False, detail="no match"),
        TurnFinished(turn=1, usage=Usage(input_tokens=1, output_tokens=2, requests=3)),
        TextWritten(text="upon a time"),
    ]


@pytest.mark.contract("C3")
@pytest.mark.parametrize("agent", ["gives_up", "gives_up-shared"])
async def test_an_agent_that_gives_up_has_failed_as_it_says(tmp_path: Path, agent: str) -> None:
    async with running_node(tmp_path) as node:
        outcome = await node.run(agent)
    assert outcome.failure == StepFailure(code=FailureCode.AGENT_FAILED, message="the oracle is silent", retryable=True)


@pytest.mark.contract("C3", "C9")
@pytest.mark.parametrize("agent", ["raises", "raises-shared"])
async def test_an_exception_is_told_with_its_place_in_the_agents_code_and_what_it_had_cost(
    tmp_path: Path, agent: str
) -> None:
    source = Path(__file__).with_name("node_agents.py").read_text().splitlines()
    line = source.index('    return str(json.loads("{"))') + 1
    async with running_node(tmp_path) as node:
        outcome = await node.run(agent)
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.CRASHED
    assert outcome.failure.message == (
        "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
        f" (node_agents.py:{line})"
    )
    assert outcome.usage == Usage(input_tokens=7, output_tokens=3, requests=1)


@pytest.mark.parametrize("agent", ["exits", "exits-shared"])
async def test_an_agent_that_exits_has_crashed_and_takes_nobody_along(tmp_path: Path, agent: str) -> None:
    async with running_node(tmp_path) as node:
        sibling = node.start("waits-shared")
        await sibling.first_progress()
        outcome = await node.run(agent)
        assert not sibling.has_ended
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.CRASHED
    assert outcome.failure.message.startswith("SystemExit: 3 (node_agents.py:")


@pytest.mark.contract("C3")
async def test_a_process_that_dies_is_told_with_signal_or_exit_code_and_last_words(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        died = (await node.run("prints_and_dies")).failure
        quit_ = (await node.run("quits")).failure
    assert died is not None
    assert died.code is FailureCode.CRASHED
    assert died.message == "the agent's process ended before the agent had returned: killed by SIGABRT: out of luck"
    assert not died.retryable
    assert quit_ is not None
    assert quit_.message == "the agent's process ended before the agent had returned: exit code 7"


@pytest.mark.parametrize("agent", ["no_json", "no_json-shared"])
async def test_a_result_that_is_no_json_is_told(tmp_path: Path, agent: str) -> None:
    async with running_node(tmp_path) as node:
        outcome = await node.run(agent)
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.CRASHED
    assert "no JSON value: Object of type set" in outcome.failure.message


@pytest.mark.contract("C9")
async def test_an_agent_that_cannot_be_found_or_is_not_async_in_a_shared_worker_is_told(tmp_path: Path) -> None:
    broken = (python_agent("nowhere"), python_agent("nowhere", shared=True), python_agent("f", module="no_module"))
    async with running_node(tmp_path, *broken) as node:
        for agent in ("nowhere", "nowhere-shared"):
            failure = (await node.run(agent)).failure
            assert failure is not None
            assert failure.code is FailureCode.AGENT_FAILED
            assert failure.message == (
                f"agent {agent}: entry node_agents:nowhere cannot be loaded: the module has no such function"
            )
        failure = (await node.run("f")).failure
        assert failure is not None
        assert (failure.code, failure.message) == (
            FailureCode.AGENT_FAILED,
            "agent f: entry no_module:f cannot be loaded: ModuleNotFoundError: No module named 'no_module'",
        )
        failure = (await node.run("plain-shared")).failure
        assert failure is not None
        assert failure.code is FailureCode.AGENT_FAILED
        assert failure.message == (
            "agent plain-shared: entry node_agents:plain must be async, because the agent is declared shared"
        )


@pytest.mark.contract("C3")
async def test_a_slip_in_an_agents_result_is_told_as_such(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        wrong = await node.run("wrong_usage", "1.5")
        odd = await node.run("gives_up_oddly")
    assert wrong.failure is not None
    assert wrong.failure.code is FailureCode.CRASHED
    assert "a whole number from 0 to 9223372036854775807 expected, not 1.5" in wrong.failure.message
    assert wrong.output == "done"
    assert odd.failure == StepFailure(code=FailureCode.AGENT_FAILED, message="the oracle is silent")


@pytest.mark.contract("C9")
async def test_a_worker_that_talks_nonsense_or_hangs_up_costs_nobody_else_anything(tmp_path: Path) -> None:
    nonsense = [
        "{",
        "[[1]]",
        '[["end"]]',
        '[["end", 0, 7]]',
        '[["end", 1, {}]]',
        '[["tool", 0, 1, 2, 3]]',
        '[[["end"]]]',
    ]
    async with running_node(tmp_path) as node:
        sibling = node.start("waits")
        lives = [node.start("lies", prompt) for prompt in nonsense] + [node.start("boasts"), node.start("hangs_up")]
        for life in lives:
            failure = (await life.outcome()).failure
            assert failure is not None
            assert failure.code is FailureCode.CRASHED
        assert not sibling.has_ended


@pytest.mark.parametrize("agent", ["surrogates", "surrogates-shared"])
async def test_lone_surrogates_are_replaced(tmp_path: Path, agent: str) -> None:
    async with running_node(tmp_path) as node:
        life = node.start(agent)
        assert (await life.outcome()).output == "c\ufffdd"
    assert life.progress == [TextWritten(text="a\ufffdb")]


@pytest.mark.contract("C3", "F11")
@pytest.mark.parametrize("agent", ["long_output", "long_output-shared"])
async def test_an_output_beyond_the_limit_is_cut_and_not_retryable(tmp_path: Path, agent: str) -> None:
    async with running_node(tmp_path, output_bytes=999) as node:
        assert (await node.run(agent, "499")).output == "é" * 499
        outcome = await node.run(agent, "500")
    assert outcome.output == "é" * 499
    assert outcome.failure == StepFailure(
        code=FailureCode.PAYLOAD_TOO_LARGE, message="the agent's output is larger than 999 bytes"
    )


async def test_a_large_prompt_and_a_large_output_get_through(tmp_path: Path) -> None:
    text = json.dumps("\u0001é" * 100_000)
    async with running_node(tmp_path, output_bytes=2**21) as node:
        for agent in ("value", "value-shared"):
            assert (await node.run(agent, text)).output == json.loads(text)


@pytest.mark.contract("F15")
async def test_a_flood_of_progress_and_prints_is_bounded(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        life = node.start("floods", "30000")
        outcome = await life.outcome()
        texts = [p.text for p in life.progress if isinstance(p, TextWritten)]
    assert outcome.output == "flooded"
    assert outcome.started_at is not None
    assert outcome.ended_at is not None
    windows = (outcome.ended_at - outcome.started_at).total_seconds() / 0.1 + 2
    assert len(life.progress) <= windows * 110
    assert max(map(len, texts)) <= 16 * 1024


@pytest.mark.contract("F1")
@pytest.mark.parametrize("agent", ["cleans_up", "cleans_up_async", "cleans_up_async-shared"])
async def test_a_stopped_agent_gets_to_clean_up(tmp_path: Path, agent: str) -> None:
    witness = tmp_path / "witness"
    async with running_node(tmp_path, stop_grace=60) as node:
        life = node.start(agent, str(witness))
        await life.first_progress()
        node.cancel(life)
        outcome = await life.outcome()
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.CANCELLED
    assert witness.read_text() == "cancelled: True"


async def test_what_an_agent_leaves_running_in_its_process_does_not_keep_the_step(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        assert (await node.run("leaves_a_task")).output == "done"
        assert not node.processes


async def test_an_agent_sees_a_clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    async with running_node(tmp_path, environment=dict(os.environ)) as node:
        found = json.loads((await node.run("environment")).output)
    assert "hunter2" not in repr(found)
    assert "PATH" in found["self"]


async def test_an_agent_sees_the_variables_that_its_file_names_and_no_other_agent_does(tmp_path: Path) -> None:
    named = replace(python_agent("variables"), name="named", env=("A_KEY", "A_MISSING"))
    environment = CLEAN_ENVIRONMENT | {"A_KEY": "open sesame", "A_OTHER": "unseen"}
    async with running_node(tmp_path, named, environment=environment) as node:
        outputs = [(await node.run(agent, "A_")).output for agent in ("named", "variables")]
    assert outputs == ['{"A_KEY": "open sesame"}', "{}"]


async def test_no_failure_of_an_agent_tells_what_it_was_given_in_confidence(tmp_path: Path) -> None:
    secret = "sk-12345678-abcdefghij"
    environment = CLEAN_ENVIRONMENT | {"MY_TOKEN": secret}
    agents = [replace(python_agent(name), env=("MY_TOKEN",)) for name in ("raises_its_token", "dies_with_its_token")]
    async with running_node(tmp_path, *agents, environment=environment) as node:
        raised = await node.run("raises_its_token", str(2**10 - 20))
        died = await node.run("dies_with_its_token")
    for outcome in (raised, died):
        assert outcome.failure is not None
        assert outcome.failure.code is FailureCode.CRASHED
        assert "***" in outcome.failure.message
        assert secret[:6] not in outcome.failure.message
