"""Spans of steps on a node: the agent's, and those of the calls of its model and its tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from executor_node.agents import AgentDefinition
from executor_node.agents.llm.definition import Tool
from executor_node.tracing import LIMITED
from fanfold.model.node import AgentKind, Isolation
from fanfold.model.step import FailureCode
from fanfold.model.trace import TraceContext
from integration import node_harness
from integration.node_harness import CLEAN_ENVIRONMENT, running_node
from support.providers import Provider, Reply, refusal, running_provider
from support.recorded import CALLER, Recorded, attribute, error_of, parent_of, span_id_of, trace_id_of

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's first step imports pydantic-ai, which takes long on a busy machine."""
    monkeypatch.setattr(node_harness, "PATIENCE", 90.0)


THINKER = AgentDefinition(
    name="thinker",
    description="for tests",
    kind=AgentKind.LLM,
    isolation=Isolation.SHARED,
    model="openai:a-model",
    tools=(Tool.GLOB, Tool.READ),
)
UNSAMPLED = TraceContext(CALLER.traceparent[:-1] + "0")
AGENT = "invoke_agent thinker"
CALL = "chat a-model"


def node_with(workspace: Path, provider: Provider, recorded: Recorded, agent: AgentDefinition = THINKER) -> Any:
    environment = CLEAN_ENVIRONMENT | provider.openai
    return running_node(workspace, agent, environment=environment, tracer=recorded.tracer)


def tokens(span: ReadableSpan) -> tuple[Any, Any]:
    return attribute(span, "gen_ai.usage.input_tokens"), attribute(span, "gen_ai.usage.output_tokens")


@pytest.mark.parametrize("content", [False, True])
async def test_calls_of_models_and_tools_are_spans_of_their_agent(tmp_path: Path, content: bool) -> None:
    (tmp_path / "facts.txt").write_text("one\n")
    tools = [("glob", {"pattern": "*.txt"}), ("read", {"path": "not-there"})]
    replies = [Reply(tools=tools, usage=(100, 10)), Reply(text="what-it-says", usage=(150, 20))]
    recorded = Recorded(content=content)
    async with running_provider(*replies) as provider, node_with(tmp_path, provider, recorded) as node:
        outcome = await node.start("thinker", "what-is-asked", trace=CALLER).outcome()
    assert outcome.success
    agent = recorded.only(AGENT)
    assert (trace_id_of(agent), parent_of(agent), agent.kind.name) == (CALLER.trace_id, CALLER.span_id, "SERVER")
    assert (attribute(agent, "gen_ai.provider.name"), attribute(agent, "gen_ai.request.model")) == ("openai", "a-model")
    assert attribute(agent, "gen_ai.conversation.id") == outcome.session_id
    assert tokens(agent) == (250, 30)
    calls = recorded.named(CALL)
    assert [(span.kind.name, tokens(span), error_of(span)) for span in calls] == [
        ("CLIENT", (100, 10), None),
        ("CLIENT", (150, 20), None),
    ]
    glob, read = recorded.only("execute_tool glob"), recorded.only("execute_tool read")
    assert [error_of(glob), error_of(read)] == [None, "TOOL_FAILED"]
    for span in (*calls, glob, read):
        assert parent_of(span) == span_id_of(agent)
        assert span.start_time is not None
        assert span.end_time is not None
        assert agent.start_time is not None
        assert agent.start_time <= span.start_time <= span.end_time
    assert ("*.txt" in str(attribute(glob, "gen_ai.tool.call.arguments"))) is content
    told = "".join(span.to_json() for span in recorded.spans)
    assert ("what-is-asked" in told, "what-it-says" in told, "not-there" in told) == (content,) * 3
    assert "sk-for-tests" not in told, "the provider's key is in no span"


REFUSALS = {
    "rate": (refusal(429, "slower", code="rate_limit_exceeded", retry_after="0"), [LIMITED] * 4, "AGENT_FAILED"),
    "quota": (refusal(429, "no money", code="insufficient_quota"), ["QUOTA_EXHAUSTED"], "QUOTA_EXHAUSTED"),
    "key": (refusal(401, "who is sk-for-tests"), ["_OTHER"], "AGENT_FAILED"),
}


@pytest.mark.contract("C3")
@pytest.mark.parametrize("kind", REFUSALS)
async def test_a_call_that_its_provider_refuses_is_an_error(tmp_path: Path, kind: str) -> None:
    reply, expected, code = REFUSALS[kind]
    recorded = Recorded()
    async with running_provider(reply) as provider, node_with(tmp_path, provider, recorded) as node:
        outcome = await node.run("thinker")
    assert outcome.failure is not None
    assert [error_of(span) for span in recorded.named(CALL)] == expected
    assert error_of(recorded.only(AGENT)) == code == outcome.failure.code
    assert all("sk-for-tests" not in span.to_json() for span in recorded.spans)


async def test_a_repair_by_a_model_is_a_span_of_its_own(tmp_path: Path) -> None:
    agent = AgentDefinition(
        name="mumbles",
        description="for tests",
        kind=AgentKind.COMMAND,
        command=("/bin/echo", "It is 42."),
        repair_model="openai:a-model",
    )
    recorded = Recorded()
    reply = Reply(text='{"answer": 42}', usage=(10, 5))
    async with running_provider(reply) as provider, node_with(tmp_path, provider, recorded, agent) as node:
        outcome = await node.run("mumbles", schema=SCHEMA)
    assert outcome.structured == {"answer": 42}
    repair, whole = recorded.named("invoke_agent mumbles")
    assert parent_of(repair) == span_id_of(whole)
    assert attribute(repair, "fanfold.repair") is True
    assert parent_of(recorded.only(CALL)) == span_id_of(repair)
    assert [error_of(span) for span in recorded.spans] == [None] * 3
    assert tokens(whole) == (10, 5)


async def test_a_cancelled_step_has_no_error_and_one_that_a_draining_node_stops_is_handed_back(tmp_path: Path) -> None:
    recorded = Recorded()
    async with running_node(tmp_path, tracer=recorded.tracer) as node:
        cancelled = node.start("waits")
        node.cancel(cancelled)
        await cancelled.outcome()
        stopped = node.start("waits")
        await node.executions.drain(0)
        outcome = await stopped.outcome()
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.NODE_LOST
    first, second = recorded.named("invoke_agent waits")
    assert [error_of(first), error_of(second)] == [None, None]
    assert attribute(first, "fanfold.failure.code") == "CANCELLED"
    assert attribute(second, "fanfold.rejection") == "draining"


async def test_what_its_coordinator_does_not_record_is_not_recorded_here(tmp_path: Path) -> None:
    recorded = Recorded()
    async with running_node(tmp_path, tracer=recorded.tracer) as node:
        life = node.start("shell", "echo $TRACEPARENT", trace=UNSAMPLED)
        assert (await life.outcome()).output.strip() == UNSAMPLED.traceparent
    assert recorded.spans == []
