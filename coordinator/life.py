"""The order in which a step's life is told, whatever really happened (C11)."""

from __future__ import annotations

from datetime import UTC, datetime

from fanfold.model.step import (
    AgentStepSpec,
    FailureCode,
    StepEnded,
    StepEvent,
    StepFailure,
    StepOutcome,
    StepStarted,
)
from fanfold.ports import OnStepEvent


class StepLife:
    """Tells one step's events: exactly one started, then progress, then exactly one ended, and nothing after it.

    What comes twice, too late or out of order is not told on.
    """

    __slots__ = ("_ended", "_listener", "_spec", "_started")

    def __init__(self, spec: AgentStepSpec, listener: OnStepEvent | None) -> None:
        self._spec = spec
        self._listener = listener
        self._started = False
        self._ended = False

    def tell(self, event: StepEvent) -> None:
        """Tell an event, if it has its place in the order."""
        if self._listener is None or self._ended:
            return
        if isinstance(event, StepEnded):
            self.end(event.outcome)
        elif isinstance(event, StepStarted) is not self._started:
            self._started = True
            self._listener(event)

    def end(self, outcome: StepOutcome) -> StepOutcome:
        """Tell the end, after a start if there was none, unless it was told; give the outcome back."""
        if self._listener is not None and not self._ended:
            time = outcome.ended_at or datetime.now(UTC)
            ended = StepEnded(task_id=self._spec.task_id, time=time, outcome=outcome)
            if not self._started:
                self._started = True
                self._listener(ended.start)
            self._ended = True
            self._listener(ended)
        return outcome


def failed(spec: AgentStepSpec, code: FailureCode, message: str, *, retryable: bool = False) -> StepOutcome:
    """The outcome of a step that failed outside its agent, without an attempt."""
    return unplaced(spec, StepFailure(code=code, message=message, retryable=retryable))


def unplaced(spec: AgentStepSpec, failure: StepFailure) -> StepOutcome:
    """The outcome of a step that was not begun, because of this."""
    return StepOutcome(
        task_id=spec.task_id, agent=spec.agent, success=False, failure=failure, ended_at=datetime.now(UTC)
    )
