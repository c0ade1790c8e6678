"""Steps of llm agents on a node: answers, usage, and what providers refuse, over models that the test plays."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from fanfold.model.step import FailureCode, TextWritten, TurnFinished, Usage
from integration import node_harness
from integration.llm_nodes import llm_agent, node_with
from integration.node_harness import CLEAN_ENVIRONMENT, eventually, running_node
from support.providers import Reply, refusal, running_provider

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's first step imports pydantic-ai, which takes long on a busy machine."""
    monkeypatch.setattr(node_harness, "PATIENCE", 90.0)


@pytest.mark.contract("C2", "C11")
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("model", ["openai:m", "openai-responses:m", "anthropic:m"])
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
    "key": (refusal(401, "who is sk-for-tests"), FailureCode.AGENT_FAILED, False, 1),
    "context": (refusal(400, "too long", code="context_length_exceeded"), FailureCode.AGENT_FAILED, False, 1),
    "broken": (Reply(text="It is", broken=True), FailureCode.AGENT_FAILED, True, 1),
    "empty": (Reply(text=" "), FailureCode.AGENT_FAILED, False, 1),
    "cut": (Reply(text="It is", cut=True), FailureCode.AGENT_FAILED, False, 1),
}


NO_CREDIT = refusal(402, "no money", kind="billing_error")
"""Anthropic's word for that the quota is gone."""


KINDS = {"openai": "/v1", "openai-responses": "/v1", "anthropic": ""}
"""Ways to ask a provider, and how the addresses of each end."""


@pytest.mark.contract("C2", "C3", "F9")
@pytest.mark.parametrize("kind", KINDS)
async def test_what_providers_refuse_has_its_code(tmp_path: Path, kind: str) -> None:
    """Each error comes from a provider of its own, or one would hold back the calls of another."""
    async with AsyncExitStack() as stack:
        keys = {"OPENAI_API_KEY": "sk-for-tests", "ANTHROPIC_API_KEY": "sk-for-tests"}
        environment, providers, agents = CLEAN_ENVIRONMENT | keys, {}, []
        for error, (reply, *_) in ERRORS.items():
            said = NO_CREDIT if (kind, error) == ("anthropic", "quota") else reply
            providers[error] = await stack.enter_async_context(running_provider(said))
            environment[error] = f"http://127.0.0.1:{providers[error].port}{KINDS[kind]}"
            agents.append(llm_agent(error, model=f"{kind}:m", base_url_env=error))
        node = await stack.enter_async_context(running_node(tmp_path, *agents, environment=environment))
        lives = {error: node.start(error) for error in ERRORS}
        for error, (_, code, retryable, calls) in ERRORS.items():
            failure = (await lives[error].outcome()).failure
            assert failure is not None
            assert (failure.code, failure.retryable) == (code, retryable), failure
            assert len(providers[error].asked) == calls, failure
            assert "sk-for-tests" not in failure.message
            assert ("who is ***" in failure.message) == (error == "key")


@pytest.mark.contract("C13", "F10")
@pytest.mark.parametrize("reply", [Reply(text="It is " * 40, broken=True), Reply(text="It is " * 40, usage=(0, 0))])
async def test_what_a_provider_does_not_say_of_its_cost_is_counted_by_the_text(tmp_path: Path, reply: Reply) -> None:
    async with running_provider(reply) as provider, node_with(tmp_path, provider, llm_agent()) as node:
        outcome = await node.run("thinker")
    assert outcome.usage.requests == 1
    assert outcome.usage.input_tokens > 0
    assert outcome.usage.output_tokens == 60  # of 240 bytes


@pytest.mark.contract("F1")
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


EVERY_PLANE = " ".join(chr(plane * 0x10000 + 0xA1) for plane in range(17)) + " \u0301 \U0001f468\u200d\U0001f469 \ufdd0"


@pytest.mark.contract("C5")
@pytest.mark.parametrize("model", [f"{kind}:m" for kind in KINDS])
async def test_every_plane_of_unicode_goes_through_prompt_stream_and_outcome(tmp_path: Path, model: str) -> None:
    reply = Reply(text=json.dumps({"said": EVERY_PLANE}, ensure_ascii=False))
    schema = {"type": "object", "properties": {"said": {"const": EVERY_PLANE}}}
    async with running_provider(reply) as provider, node_with(tmp_path, provider, llm_agent(model=model)) as node:
        life = node.start("thinker", EVERY_PLANE, schema=schema)
        outcome = await life.outcome()
        assert outcome.structured == {"said": EVERY_PLANE}
        assert outcome.output == reply.text
        assert "".join(each.text for each in life.progress if isinstance(each, TextWritten)) == reply.text
    assert EVERY_PLANE in json.dumps(provider.asked[0], ensure_ascii=False)


@pytest.mark.parametrize(
    ("model", "complaint"),
    {
        "groq:m": "the provider groq needs `pip install 'pydantic-ai-slim[groq]'` on the node",
        "nobody:m": "the model nobody:m cannot be used: Unknown provider: nobody",
        "deepseek:m": "its provider has one address only; `openai` is asked at any",
        "openai-responses:m": "the node's environment has neither key nor address of the provider",
        "anthropic:m": "ANTHROPIC_API_KEY",
    }.items(),
)
async def test_a_model_that_cannot_be_used_fails_its_step_by_name(tmp_path: Path, model: str, complaint: str) -> None:
    environment = CLEAN_ENVIRONMENT | {"DEEPSEEK_BASE_URL": "http://127.0.0.1:1", "DEEPSEEK_API_KEY": "k"}
    async with running_node(tmp_path, llm_agent(model=model), environment=environment) as node:
        failure = (await node.run("thinker")).failure
    assert failure is not None
    assert (failure.code, failure.retryable) == (FailureCode.AGENT_FAILED, False)
    assert complaint in failure.message


@pytest.mark.contract("F11")
@pytest.mark.parametrize("model", ["openai:m", "anthropic:m"])
async def test_an_answer_without_an_end_ends_its_step_when_it_is_too_large(tmp_path: Path, model: str) -> None:
    reply = Reply(text=" ".join(["x" * 200_000] * 8), hangs=True)
    agent = llm_agent(model=model)
    async with running_provider(reply) as provider, node_with(tmp_path, provider, agent) as node:
        outcome = await node.run("thinker")
        await eventually(lambda: provider.open == 0)
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.PAYLOAD_TOO_LARGE
    assert outcome.output.startswith("x" * 200_000 + " x")
    assert len(outcome.output) <= 2**20


@pytest.mark.contract("C3")
@pytest.mark.parametrize("raw", ['{"choices": 5}', '{"choices": [{"delta": {"tool_calls": 7}}]}', "[1, 2]", "{oops"])
async def test_an_answer_that_makes_no_sense_is_the_providers_fault_and_not_a_crash(tmp_path: Path, raw: str) -> None:
    reply = Reply(raw=f"data: {raw}\n\ndata: [DONE]\n\n")
    async with running_provider(reply) as provider, node_with(tmp_path, provider, llm_agent()) as node:
        failure = (await node.run("thinker")).failure
    assert failure is not None
    assert failure.code is FailureCode.AGENT_FAILED
