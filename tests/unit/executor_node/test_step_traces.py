from __future__ import annotations

import json

import pytest

from executor_node.agents import AgentDefinition
from executor_node.tracing import MOST_SPANS, UNTRACED, StepTrace, TracedStep
from executor_node.workers.messages import progress_from_message, seconds_from_message, tool_to_message
from fanfold.model.node import AgentKind
from fanfold.model.step import (
    AgentStepSpec,
    FailureCode,
    StepFailure,
    StepOutcome,
    ToolFinished,
    TurnFinished,
    Usage,
)
from fanfold.model.trace import TraceContext
from fanfold.spans import MOST_CONTENT
from support.recorded import CALLER, Recorded, attribute, error_of, parent_of, span_id_of

AGENT = AgentDefinition(name="a", description="d", kind=AgentKind.LLM, model="anthropic:m")
SPEC = AgentStepSpec(task_id="t", agent="a", description="d", prompt="the-prompt")


def begun(recorded: Recorded, spec: AgentStepSpec = SPEC) -> TracedStep:
    return TracedStep.begin(recorded.tracer, CALLER, AGENT, spec, "run-1/t/1.1.1.0", session_id="s", node="n")


def outcome(code: FailureCode | None = None, **fields: object) -> StepOutcome:
    failure = None if code is None else StepFailure(code=code, message="the-words")
    return StepOutcome(task_id="t", agent="a", success=failure is None, failure=failure, **fields)  # type: ignore[arg-type]


@pytest.mark.contract("C3")
@pytest.mark.parametrize("code", [None, *FailureCode])
def test_every_failure_but_to_be_cancelled_is_an_error(code: FailureCode | None) -> None:
    recorded = Recorded()
    begun(recorded).end(outcome(code))
    span = recorded.only("invoke_agent a")
    assert error_of(span) == (None if code in {None, FailureCode.CANCELLED} else code)
    assert attribute(span, "fanfold.failure.code") == code
    assert "the-words" not in span.to_json()
    assert "the-prompt" not in span.to_json()


def test_a_call_costs_what_was_spent_since_the_one_before() -> None:
    recorded = Recorded()
    step = begun(recorded)
    for turn, spent in enumerate([(10, 1), (30, 4)], start=1):
        step.call_began()
        step.progressed(TurnFinished(turn=turn, usage=Usage(input_tokens=spent[0], output_tokens=spent[1])), None)
    step.end(outcome())
    calls = recorded.named("chat m")
    assert [attribute(span, "gen_ai.usage.input_tokens") for span in calls] == [10, 20]
    assert [attribute(span, "gen_ai.usage.output_tokens") for span in calls] == [1, 3]
    assert {attribute(span, "gen_ai.provider.name") for span in calls} == {"anthropic"}


def test_a_call_of_whose_end_nothing_is_heard_is_an_error() -> None:
    recorded = Recorded()
    step = begun(recorded)
    step.call_began()
    step.call_began()
    step.end(outcome(FailureCode.AGENT_FAILED))
    assert [error_of(span) for span in recorded.named("chat m")] == ["_OTHER", "_OTHER"]


def test_a_tool_has_a_span_if_it_is_told_how_long_it_took_and_else_a_note() -> None:
    recorded = Recorded()
    step = begun(recorded)
    step.progressed(ToolFinished(name="slow", success=True), 1.5)
    step.progressed(ToolFinished(name="bad", success=False), 0.0)
    step.progressed(ToolFinished(name="unknown", success=True), None)
    step.end(outcome())
    slow, bad = recorded.only("execute_tool slow"), recorded.only("execute_tool bad")
    assert slow.start_time is not None
    assert slow.end_time is not None
    assert 1.5e9 <= slow.end_time - slow.start_time < 3e9
    assert (error_of(slow), error_of(bad)) == (None, "TOOL_FAILED")
    agent = recorded.only("invoke_agent a")
    assert parent_of(slow) == span_id_of(agent)
    assert [(event.name, (event.attributes or {})["gen_ai.tool.name"]) for event in agent.events] == [
        ("tool call", "unknown")
    ]


def test_a_flood_of_tools_is_cut() -> None:
    recorded = Recorded()
    step = begun(recorded)
    for _ in range(2 * MOST_SPANS):
        step.progressed(ToolFinished(name="t", success=True), 0.1)
    step.end(outcome())
    assert len(recorded.named("execute_tool t")) == MOST_SPANS


def test_of_long_texts_only_the_beginning_is_told() -> None:
    recorded = Recorded(content=True)
    long = '"ü' * MOST_CONTENT
    step = begun(recorded, AgentStepSpec(task_id="t", agent="a", description="d", prompt=long))
    step.end(outcome(output=long))
    for name in ("gen_ai.input.messages", "gen_ai.output.messages"):
        (message,) = json.loads(attribute(recorded.only("invoke_agent a"), name))
        assert message["parts"][0]["content"] == long[:MOST_CONTENT]


def test_programs_find_what_they_are_part_of() -> None:
    assert UNTRACED.variables() == {}
    assert StepTrace(CALLER).variables() == {"TRACEPARENT": CALLER.traceparent, "TRACESTATE": "vendor=1"}
    assert StepTrace(TraceContext(CALLER.traceparent)).variables() == {"TRACEPARENT": CALLER.traceparent}


@pytest.mark.parametrize(
    ("said", "taken"),
    [(1.5, 1.5), (0.0, 0.0), (-1.0, None), (float("nan"), None), (1e9, None), ("1", None), (True, None), (None, None)],
)
def test_how_long_a_tool_took_is_believed_only_if_it_makes_sense(said: object, taken: float | None) -> None:
    message = [*tool_to_message(1, "t", True, "")[:5], said]
    assert seconds_from_message(message) == taken
    assert isinstance(progress_from_message(message), ToolFinished)
    assert seconds_from_message(message[:5]) is None
