"""The spans of a run: its own, one for each step that is run, and one for each time that a step is sent to a node."""

from __future__ import annotations

from fanfold.model.run import RunKind, RunState, StepCounts
from fanfold.model.step import AgentStepSpec, FailureCode, StepOutcome
from fanfold.model.trace import TraceContext
from fanfold.ports import RejectionReason
from fanfold.spans import (
    ADOPTED,
    AGENT_NAME,
    ATTEMPT,
    ATTEMPTS,
    EXECUTION_ID,
    MOVED,
    NODE,
    OPERATION,
    OWNER,
    REJECTION,
    RUN_EPOCH,
    RUN_FAILED,
    RUN_ID,
    RUN_KIND,
    RUN_STATE,
    RUN_SUCCEEDED,
    TASK_ID,
    WORKFLOW_ID,
    WORKFLOW_NAME,
    end_as,
)
from fanfold.tracing import NO_TRACER, Attributes, Span, SpanKind, Tracer


class RunTrace:
    """What is traced of a run, or of a single step that belongs to none.

    Args:
        tracer: begins the spans.
        parent: what the run is part of: its caller's span, or what its former holder has traced it as.
        link: what it goes on with, if it was begun before: the run's own span then, or that of the workflow's last run.
    """

    def __init__(
        self, tracer: Tracer = NO_TRACER, parent: TraceContext | None = None, link: TraceContext | None = None
    ) -> None:
        self._tracer = tracer
        self._parent = parent
        self._link = link
        self._run: Span | None = None
        self._steps: dict[str, Span] = {}
        self.is_on = tracer.is_on
        """Whether anything comes of it."""
        self.context = parent
        """What the run's steps are part of; None if nobody traces it."""

    def begin(
        self, run_id: str, owner: str, kind: RunKind, *, name: str = "", workflow_id: str = "", epoch: int = 1
    ) -> None:
        """The run begins here; `name` is what a script calls itself."""
        if not self.is_on:
            return
        about: Attributes = {OPERATION: "invoke_workflow", RUN_ID: run_id, RUN_KIND: kind.value, OWNER: owner}
        title = f"invoke_workflow {name or kind.value}"
        self._run = self._tracer.start(title, self._parent, about, kind=SpanKind.SERVER, link=self._link)
        self._run.set({RUN_EPOCH: epoch})
        if name:
            self._run.set({WORKFLOW_NAME: name})
        if workflow_id:
            self._run.set({WORKFLOW_ID: workflow_id})
        self.context = self._run.context
        self.is_on = self._run.is_recorded  # nor is anything below it, if it is not

    def end(self, state: RunState | None, steps: StepCounts, reason: str = "") -> None:
        """The run has ended here; without a state, it goes on elsewhere."""
        if self._run is None:
            return
        self._run.set({RUN_SUCCEEDED: steps.succeeded, RUN_FAILED: steps.failed})
        self._run.set({MOVED: True} if state is None else {RUN_STATE: state.value})
        self._run.end("RUN_FAILED" if state is RunState.FAILED else "", reason)

    def begin_step(self, key: str, spec: AgentStepSpec) -> None:
        """A step begins; `end_step` ends it."""
        about = {TASK_ID: spec.task_id, AGENT_NAME: spec.agent}
        parent, kind = (self._parent, SpanKind.SERVER) if self._run is None else (self._run, SpanKind.INTERNAL)
        self._steps[key] = self._tracer.start(f"step {spec.agent}", parent, about, kind=kind)

    def end_step(self, key: str, outcome: StepOutcome) -> None:
        """A step has ended."""
        span = self._steps.pop(key)
        span.set({ATTEMPTS: outcome.attempts, NODE: outcome.node})
        end_as(span, outcome)

    def drop_step(self, key: str, *, moved: bool = False, error: str = "") -> None:
        """A step has no outcome here: it was cancelled, or its run goes on elsewhere, or what runs it has failed."""
        span = self._steps.pop(key)
        if moved:
            span.set({MOVED: True})
        span.end(error)

    def attempt(self, key: str, execution_id: str, number: int, spec: AgentStepSpec, node: str) -> Attempted | None:
        """A step is sent to a node; None if that is not traced."""
        if not self.is_on:
            return None
        about: Attributes = {AGENT_NAME: spec.agent, ATTEMPT: number, NODE: node, EXECUTION_ID: execution_id}
        parent = self._steps.get(key, self._run)
        return Attempted(self._tracer.start(f"attempt {spec.agent}", parent, about, kind=SpanKind.CLIENT))


UNTRACED = RunTrace()
"""Of runs that nobody traces."""


class Attempted:
    """The span of an execution, from when it is sent to its ending."""

    __slots__ = ("_span", "context")

    def __init__(self, span: Span) -> None:
        self._span = span
        self.context = span.context

    def adopted(self) -> None:
        """A former holder of the run has sent it."""
        self._span.set({ADOPTED: True})

    def left(self) -> None:
        """It goes on for the run's next holder."""
        self._span.set({MOVED: True})
        self._span.end()

    def ended(self, outcome: StepOutcome) -> None:
        """It has an outcome."""
        end_as(self._span, outcome)

    def rejected(self, reason: RejectionReason) -> None:
        """Its node does not take it, or hands it back, which is no error (C10, C43)."""
        self._span.set({REJECTION: reason.value})
        self._span.end()

    def lost(self, *, cancelled: bool) -> None:
        """It is gone with its node, or, if it was cancelled, nobody waits for it any more."""
        self._span.end("" if cancelled else FailureCode.NODE_LOST)
