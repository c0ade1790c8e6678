"""What bounds steps of llm agents: schemas, caps, quotas."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanfold.model.step import FailureCode, StepPolicy, Usage
from integration import node_harness
from integration.llm_nodes import llm_agent, node_with
from integration.node_harness import CLEAN_ENVIRONMENT, eventually, running_node
from support.providers import Reply, refusal, running_provider

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's first step imports pydantic-ai, which takes long on a busy machine."""
    monkeypatch.setattr(node_harness, "PATIENCE", 90.0)


@pytest.mark.contract("C20", "F14")
async def test_structured_output_is_repaired_twice_at_most(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> Reply:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        right = {"fine": 0, "mends": 1}.get(body["model"], 99)
        return Reply(text='```json\n{"answer": 42}\n```' if turn >= right else "It is 42.")

    agents = [llm_agent(name, model=f"openai:{name}") for name in ("fine", "mends", "stubborn")]
    async with running_provider(answer=answer) as provider, node_with(tmp_path, provider, *agents) as node:
        outcomes = [await node.run(agent.name, schema=SCHEMA) for agent in agents]
    assert [outcome.usage.requests for outcome in outcomes] == [1, 2, 3]
    assert [outcome.structured for outcome in outcomes] == [{"answer": 42}, {"answer": 42}, None]
    failure = outcomes[2].failure
    assert failure is not None
    assert failure.code is FailureCode.OUTPUT_INVALID
    assert outcomes[2].output.startswith("It is 42.\n[structured output failed: ")


@pytest.mark.contract("C20", "C24", "F8", "F14")
async def test_a_quota_that_is_gone_when_a_repair_is_asked_for_is_told_as_such_with_what_was_written(
    tmp_path: Path,
) -> None:
    replies = [Reply(text="It is 42."), refusal(429, "no money", code="insufficient_quota")]
    async with running_provider(*replies) as provider, node_with(tmp_path, provider, llm_agent()) as node:
        outcome = await node.run("thinker", schema=SCHEMA)
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.output) == (FailureCode.QUOTA_EXHAUSTED, "It is 42.")
    assert "no money" in outcome.failure.message
    assert outcome.usage == Usage(input_tokens=10, output_tokens=5, requests=1)


@pytest.mark.contract("C13", "F10")
async def test_no_call_may_cost_more_than_is_left_of_the_cap(tmp_path: Path) -> None:
    replies = [Reply(tools=[("glob", {"pattern": "*"})], usage=(300, 100))]
    async with running_provider(*replies) as provider, node_with(tmp_path, provider, llm_agent()) as node:
        outcome = await node.run("thinker", policy=StepPolicy(max_tokens=1000))
        assert outcome.failure is not None
        assert outcome.failure.code is FailureCode.BUDGET_EXHAUSTED
        assert outcome.usage.tokens <= 1000
        most = [int(body["max_completion_tokens"]) for body in provider.asked]
        assert len(most) == 2
        assert 900 < most[0] < 1000
        assert 0 < most[1] <= 200


@pytest.mark.contract("F8")
async def test_after_the_quota_is_gone_no_step_starts(tmp_path: Path) -> None:
    reply = refusal(429, "no money", code="insufficient_quota")
    async with running_provider(reply) as provider, node_with(tmp_path, provider, llm_agent()) as node:
        outcomes = [await node.run("thinker") for _ in range(20)]
        assert all(each.failure and each.failure.code is FailureCode.QUOTA_EXHAUSTED for each in outcomes)
        assert len(provider.asked) == 1


@pytest.mark.contract("F1", "F8")
async def test_a_cancelled_step_that_was_to_try_a_quota_leaves_that_to_another(tmp_path: Path) -> None:
    gone = refusal(429, "no money", code="insufficient_quota")
    provider_of = running_provider(gone, Reply(mute=True), Reply(text="done"))
    async with provider_of as provider:
        environment = CLEAN_ENVIRONMENT | provider.openai
        async with running_node(tmp_path, llm_agent(), environment=environment, quota_pause=1.0) as node:
            await node.run("thinker")
            (held_back,) = node.executions.status().held_back
            assert (held_back.agent, held_back.waiting_on) == ("thinker", "the quota of openai")
            await eventually(lambda: not any(each.quota for each in node.executions.status().held_back))
            trying = node.start("thinker")
            await eventually(lambda: len(provider.asked) == 2)
            waiting = node.start("thinker")
            await asyncio.sleep(1.0)
            assert len(provider.asked) == 2
            node.cancel(trying)
            assert (await waiting.outcome()).output == "done"
            assert node.executions.status().held_back == ()
