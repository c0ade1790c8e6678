"""The spans of a step on its node: the agent's own, and below it the calls of its model and of its tools.

They are made here, in the runtime, from what workers tell: a worker may be killed at any moment, has no network of its
own, and knows the provider's key, which no span is to come near.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from executor_node.agents import AgentDefinition
from executor_node.agents.llm.assignment import provider_of
from executor_node.told import Progress
from fanfold.model.node import AgentKind
from fanfold.model.step import NO_USAGE, AgentStepSpec, FailureCode, StepOutcome, ToolFinished, TurnFinished
from fanfold.model.trace import TraceContext
from fanfold.ports import RejectionReason
from fanfold.spans import (
    AGENT_KIND,
    AGENT_NAME,
    EXECUTION_ID,
    MODEL,
    NODE,
    OPERATION,
    OUTPUT,
    PROMPT,
    PROVIDER,
    REJECTION,
    REPAIR,
    SESSION_ID,
    TASK_ID,
    TOOL_ARGUMENTS,
    TOOL_NAME,
    end_as,
    said,
    usage_of,
)
from fanfold.tracing import Attributes, Span, SpanKind, Tracer

MOST_SPANS = 500
"""Calls of model and tools of one step that have spans; an agent that tells of more does not flood the traces."""

LIMITED = "limited"
"""The error of a call that the provider did not take now."""

_UNKNOWN_ERROR = "_OTHER"
_TOOL_FAILED = "TOOL_FAILED"


class StepTrace:
    """What is traced of a step: nothing, but that `context` is handed on to what its agent calls."""

    def __init__(self, context: TraceContext | None = None) -> None:
        self.context = context

    def variables(self) -> dict[str, str]:
        """The context as programs find it in their environment."""
        if self.context is None:
            return {}
        state = {"TRACESTATE": self.context.tracestate} if self.context.tracestate else {}
        return {"TRACEPARENT": self.context.traceparent, **state}

    def call_began(self) -> None:
        """The step may call its model now."""

    def call_failed(self, error: str) -> None:
        """The provider has refused the call."""

    def progressed(self, progress: Progress, seconds: float | None) -> None:
        """The agent has told progress, of a call that took so long, if it has told that."""

    def repair(self, model: AgentDefinition) -> StepTrace:
        """What is traced of having this model mend the step's output."""
        return self

    def hand_back(self) -> None:
        """The node stops it, for others to do: that is no error (C43)."""

    def end(self, outcome: StepOutcome) -> None:
        """The step has ended."""


UNTRACED = StepTrace()


class TracedStep(StepTrace):
    """A step that is traced."""

    def __init__(self, tracer: Tracer, span: Span, agent: AgentDefinition) -> None:
        super().__init__(span.context)
        self._tracer = tracer
        self._span = span
        self._agent = agent
        self._call: Span | None = None
        self._spent = NO_USAGE
        self._left = MOST_SPANS
        self._is_handed_back = False

    @classmethod
    def begin(
        cls,
        tracer: Tracer,
        parent: TraceContext | None,
        agent: AgentDefinition,
        spec: AgentStepSpec,
        execution_id: str,
        *,
        session_id: str,
        node: str,
    ) -> TracedStep:
        """A step begins."""
        about = {EXECUTION_ID: execution_id, TASK_ID: spec.task_id, SESSION_ID: session_id, NODE: node}
        span = _invoke_agent(tracer, parent, agent, SpanKind.SERVER)
        span.set(about)
        span.set_content(PROMPT, lambda: said("user", spec.prompt))
        return cls(tracer, span, agent)

    def call_began(self) -> None:
        """The step may call its model now."""
        self.call_failed(_UNKNOWN_ERROR)  # one before it of whose end nothing was told
        if self._may_begin():
            about: Attributes = {OPERATION: "chat", **_model_of(self._agent)}
            name = f"chat {about[MODEL]}"
            self._call = self._tracer.start(name, self._span, about, kind=SpanKind.CLIENT)

    def call_failed(self, error: str) -> None:
        """The provider has refused the call."""
        if self._call is not None:
            self._call.end(error)
            self._call = None

    def progressed(self, progress: Progress, seconds: float | None) -> None:
        """The agent has told progress."""
        if isinstance(progress, TurnFinished):
            self._end_call(progress)
        elif isinstance(progress, ToolFinished):
            self._tell_tool(progress, seconds)

    def _end_call(self, turn: TurnFinished) -> None:
        call, self._call = self._call, None
        if call is None:
            self._span.note("model call", usage_of(turn.usage))
            return
        before, self._spent = self._spent, turn.usage
        call.set(usage_of(turn.usage.since(before)))
        call.end()

    def _tell_tool(self, tool: ToolFinished, seconds: float | None) -> None:
        about: Attributes = {OPERATION: "execute_tool", TOOL_NAME: tool.name}
        if seconds is None:
            self._span.note("tool call", about)
        elif self._may_begin():
            began = datetime.now(UTC) - timedelta(seconds=seconds)
            span = self._tracer.start(f"execute_tool {tool.name}", self._span, about, at=began)
            span.set_content(TOOL_ARGUMENTS, lambda: tool.detail)
            span.end("" if tool.success else _TOOL_FAILED)

    def _may_begin(self) -> bool:
        self._left -= 1
        return self._left >= 0

    def repair(self, model: AgentDefinition) -> TracedStep:
        """What is traced of having this model mend the step's output."""
        span = _invoke_agent(self._tracer, self._span, model, SpanKind.INTERNAL)
        span.set({REPAIR: True})
        return TracedStep(self._tracer, span, model)

    def hand_back(self) -> None:
        """The node stops it, for others to do."""
        self._is_handed_back = True

    def end(self, outcome: StepOutcome) -> None:
        """The step has ended."""
        self.call_failed(_UNKNOWN_ERROR)
        self._span.set_content(OUTPUT, lambda: said("assistant", outcome.output))
        if self._is_handed_back and outcome.failure and outcome.failure.code is FailureCode.NODE_LOST:
            self._span.set({**usage_of(outcome.usage), REJECTION: RejectionReason.DRAINING.value})
            self._span.end()
        else:
            end_as(self._span, outcome)


def _invoke_agent(tracer: Tracer, parent: Span | TraceContext | None, agent: AgentDefinition, kind: SpanKind) -> Span:
    about: Attributes = {OPERATION: "invoke_agent", AGENT_NAME: agent.name, AGENT_KIND: agent.kind.value}
    span = tracer.start(f"invoke_agent {agent.name}", parent, about, kind=kind)
    if agent.kind is AgentKind.LLM:
        span.set(_model_of(agent))
    return span


def _model_of(agent: AgentDefinition) -> Attributes:
    return {PROVIDER: provider_of(agent.model), MODEL: agent.model.partition(":")[2]}
