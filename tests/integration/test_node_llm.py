"""Agents of kind llm against a real server that speaks as the providers do, in real workers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from executor_node.agents import AgentDefinition
from fanfold.model.node import AgentKind, Isolation
from fanfold.model.step import FailureCode, TextWritten, TurnFinished, Usage
from integration.node_harness import CLEAN_ENVIRONMENT, eventually, running_node
from support.providers import Provider, Reply, refusal, running_provider

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}


def llm_agent(name: str = "thinker", *, model: str = "openai:m", shared: bool = True, **keys: Any) -> AgentDefinition:
    return AgentDefinition(
        name=name,
        description="for tests",
        kind=AgentKind.LLM,
        isolation=Isolation.SHARED if shared else Isolation.PROCESS,
        model=model,
        instructions="You answer.",
        **keys,
    )


def node_with(workspace: Path, provider: Provider, *agents: AgentDefinition) -> Any:
    environment = CLEAN_ENVIRONMENT | provider.openai | provider.anthropic
    return running_node(workspace, *agents, environment=environment)


@pytest.mark.contract("C2", "C11")
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("model", ["openai:m", "anthropic:m"])
async def test_a_model_answers_with_progress_and_usage(tmp_path: Path, model: str, shared: bool) -> None:
    provider_of = running_provider(Reply(text="It is forty two", usage=(30, 7)))
    async with provider_of as provider, node_with(tmp_path, provider, llm_agent(model=model, shared=shared)) as node:
        life = node.start("thinker", "What is it?")
        outcome = await life.outcome()
        assert outcome.failure is None
        assert outcome.output == "It is forty two"
        assert outcome.usage == Usage(input_tokens=30, output_tokens=7, requests=1)
        assert "".join(each.text for each in life.progress if isinstance(each, TextWritten)) == outcome.output
        assert [each for each in life.progress if isinstance(each, TurnFinished)] == [
            TurnFinished(turn=1, usage=outcome.usage)
        ]
    asked = str(provider.asked[0])
    assert "What is it?" in asked
    assert "You answer." in asked


ERRORS = {
    "quota": (refusal(429, "no money", code="insufficient_quota"), FailureCode.QUOTA_EXHAUSTED, False, 1),
    "rate": (refusal(429, "slower", code="rate_limit_exceeded", retry_after="0"), FailureCode.AGENT_FAILED, True, 4),
    "server": (refusal(500, "oops", retry_after="0"), FailureCode.AGENT_FAILED, True, 4),
    "overload": (refusal(529, "busy", retry_after="0"), FailureCode.AGENT_FAILED, True, 4),
    "key": (refusal(401, "who are you"), FailureCode.AGENT_FAILED, False, 1),
    "context": (refusal(400, "too long", code="context_length_exceeded"), FailureCode.AGENT_FAILED, False, 1),
    "broken": (Reply(text="It is", broken=True), FailureCode.AGENT_FAILED, True, 1),
    "empty": (Reply(text=" "), FailureCode.AGENT_FAILED, False, 1),
    "cut": (Reply(text="It is", cut=True), FailureCode.AGENT_FAILED, False, 1),
}


@pytest.mark.contract("C2", "C3", "F9")
async def test_what_providers_refuse_has_its_code(tmp_path: Path) -> None:
    """Each error comes from a provider of its own, or one would hold back the calls of another."""
    async with AsyncExitStack() as stack:
        environment, providers, agents = dict(CLEAN_ENVIRONMENT), {}, []
        for error, (reply, *_) in ERRORS.items():
            providers[error] = await stack.enter_async_context(running_provider(reply))
            environment[error] = providers[error].openai["OPENAI_BASE_URL"]
            agents.append(llm_agent(error, base_url_env=error))
        node = await stack.enter_async_context(running_node(tmp_path, *agents, environment=environment))
        lives = {error: node.start(error) for error in ERRORS}
        for error, (_, code, retryable, calls) in ERRORS.items():
            failure = (await lives[error].outcome()).failure
            assert failure is not None
            assert (failure.code, failure.retryable) == (code, retryable), failure
            assert len(providers[error].asked) == calls, failure


async def test_a_cancelled_step_ends_its_call(tmp_path: Path) -> None:
    provider_of = running_provider(Reply(text="It is", hangs=True))
    async with provider_of as provider, node_with(tmp_path, provider, llm_agent()) as node:
        life = node.start("thinker")
        await life.first_progress()
        assert provider.open == 1
        node.cancel(life)
        outcome = await life.outcome()
        assert outcome.failure is not None
        assert outcome.failure.code is FailureCode.CANCELLED
        await eventually(lambda: provider.open == 0)
