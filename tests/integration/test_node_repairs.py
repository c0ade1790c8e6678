"""Output of programs that a model mends, so that it satisfies the step's schema (C20)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor_node.agents import AgentDefinition
from fanfold.model.node import AgentKind
from fanfold.model.step import FailureCode, StepOutcome, StepPolicy, TurnFinished, Usage
from integration import node_harness
from integration.node_harness import CLEAN_ENVIRONMENT, eventually, running_node
from support.providers import Provider, Reply, refusal, running_provider

pytestmark = [pytest.mark.process, pytest.mark.timeout(180), pytest.mark.contract("C20")]

SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
SPENT = Usage(input_tokens=80, output_tokens=20, requests=1)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's first step imports pydantic-ai, which takes long on a busy machine."""
    monkeypatch.setattr(node_harness, "PATIENCE", 90.0)


PYTHON = AgentDefinition(
    name="adds",
    description="for tests",
    kind=AgentKind.PYTHON,
    entry="node_agents:spends_and_tells",
    repair_model="openai:m",
)
COMMAND = AgentDefinition(
    name="prints",
    description="for tests",
    kind=AgentKind.COMMAND,
    command=("/bin/cat",),
    repair_model="anthropic:m",
)


def node_with(workspace: Path, provider: Provider) -> Any:
    environment = CLEAN_ENVIRONMENT | provider.openai | provider.anthropic
    return running_node(workspace, PYTHON, COMMAND, environment=environment)


def failure_of(outcome: StepOutcome) -> tuple[FailureCode, str]:
    assert outcome.failure is not None
    return outcome.failure.code, outcome.failure.message


async def test_a_model_mends_what_programs_wrote_in_words(tmp_path: Path) -> None:
    provider_of = running_provider(Reply(text='Sure: {"answer": "42"}'), Reply(text='{"answer": 42}'))
    async with provider_of as provider, node_with(tmp_path, provider) as node:
        life = node.start("adds", "It is 42.", schema=SCHEMA)
        added = await life.outcome()
        printed = await node.run("prints", "It is 42 as well.", schema=SCHEMA)
    assert (added.output, added.structured) == ("It is 42.", {"answer": 42})
    assert (printed.output, printed.structured) == ("It is 42 as well.", {"answer": 42})
    assert added.usage == SPENT + Usage(input_tokens=20, output_tokens=10, requests=2)
    assert printed.usage == Usage(input_tokens=10, output_tokens=5, requests=1)
    turns = [each.usage.requests for each in life.progress if isinstance(each, TurnFinished)]
    assert turns == [1, 2, 3]
    first, second, third = map(str, provider.asked)
    assert "It is 42." in first
    assert "the output is not JSON" in first
    assert "'42' is not of type 'integer'" in second.replace('"', "'").replace("\\'", "'")
    assert "It is 42 as well." in third


@pytest.mark.contract("F14")
async def test_what_cannot_be_mended_is_kept_as_it_was(tmp_path: Path) -> None:
    async with running_provider(Reply(text="No.")) as provider, node_with(tmp_path, provider) as node:
        outcome = await node.run("prints", "It is 42.", schema=SCHEMA)
    assert len(provider.asked) == 2
    code, message = failure_of(outcome)
    assert code is FailureCode.OUTPUT_INVALID
    assert "nor could a model mend it" in message
    assert outcome.output == f"It is 42.\n[structured output failed: {message}]"
    assert outcome.structured is None
    assert outcome.usage.requests == 2


async def test_no_model_is_asked_about_what_is_valid_or_has_a_value_in_it(tmp_path: Path) -> None:
    async with running_provider(Reply(text="No.")) as provider, node_with(tmp_path, provider) as node:
        prompts = ['{"answer": 1}', 'So:\n```json\n{"answer": 2}\n```\n', 'It is {"answer": 3}, I think.']
        outcomes = [await node.run("prints", prompt, schema=SCHEMA) for prompt in prompts]
    assert [outcome.structured for outcome in outcomes] == [{"answer": 1}, {"answer": 2}, {"answer": 3}]
    assert not provider.asked


@pytest.mark.contract("C13")
async def test_mending_has_what_is_left_of_the_cap(tmp_path: Path) -> None:
    """The first step has spent all that it may; the second has left what the model is asked to keep to."""
    async with running_provider(Reply(text='{"answer": 42}')) as provider, node_with(tmp_path, provider) as node:
        spent = await node.run("adds", "It is 42.", schema=SCHEMA, policy=StepPolicy(max_tokens=100))
        assert not provider.asked
        mended = await node.run("adds", "It is 42.", schema=SCHEMA, policy=StepPolicy(max_tokens=1100))
    assert failure_of(spent)[0] is FailureCode.OUTPUT_INVALID
    assert mended.structured == {"answer": 42}
    assert 500 < int(provider.asked[0]["max_completion_tokens"]) < 1000


@pytest.mark.contract("F1", "F14")
async def test_a_refusing_provider_leaves_the_output_and_a_cancel_ends_the_call(tmp_path: Path) -> None:
    replies = [refusal(401, "who are you"), Reply(text="It", hangs=True)]
    async with running_provider(*replies) as provider, node_with(tmp_path, provider) as node:
        refused = await node.run("prints", "It is 42.", schema=SCHEMA)
        life = node.start("prints", "It is 42.", schema=SCHEMA)
        await eventually(lambda: provider.open == 1 and len(provider.asked) == 2, patience=90)
        assert node.executions.status().running_steps == 1
        node.cancel(life)
        cancelled = await life.outcome()
        assert node.executions.status().running_steps == 0
        await eventually(lambda: provider.open == 0)
    code, message = failure_of(refused)
    assert code is FailureCode.OUTPUT_INVALID
    assert "who are you" in message
    assert refused.output.startswith("It is 42.\n[structured output failed: ")
    assert failure_of(cancelled)[0] is FailureCode.CANCELLED
    assert cancelled.output == "It is 42."


@pytest.mark.contract("C20", "C24", "F8", "F14")
async def test_a_quota_that_is_gone_for_the_repair_is_told_as_such_and_the_output_kept(tmp_path: Path) -> None:
    reply = refusal(429, "You exceeded your current quota", kind="insufficient_quota", code="insufficient_quota")
    async with running_provider(reply) as provider, node_with(tmp_path, provider) as node:
        outcomes = [await node.run("adds", "It is 42.", schema=SCHEMA) for _ in range(2)]
        assert len(provider.asked) == 1  # the second one was not so much as asked
    for outcome in outcomes:
        code, message = failure_of(outcome)
        assert code is FailureCode.QUOTA_EXHAUSTED
        assert "nor could a model mend it: the provider's quota is exhausted" in message
        assert outcome.output.startswith("It is 42.\n[structured output failed: ")


@pytest.mark.contract("C6")
async def test_the_time_of_a_step_is_also_for_its_repair(tmp_path: Path) -> None:
    async with running_provider(Reply(text="It", hangs=True)) as provider, node_with(tmp_path, provider) as node:
        late = await node.run("prints", "It is 42.", schema=SCHEMA, policy=StepPolicy(timeout=4.0))
        stalled = await node.run("prints", "It is 42.", schema=SCHEMA, policy=StepPolicy(no_progress_timeout=4.0))
    assert failure_of(late)[0] is FailureCode.TIMED_OUT
    assert failure_of(stalled)[0] is FailureCode.OUTPUT_INVALID
    assert "no progress for 4 seconds" in failure_of(stalled)[1]
