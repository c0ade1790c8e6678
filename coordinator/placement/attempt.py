"""An attempt of a step, and how the outcomes of several become the step's."""

from __future__ import annotations

from dataclasses import replace

from fanfold.model.step import (
    NO_USAGE,
    AgentStepSpec,
    AttemptStarted,
    FailureCode,
    StepEvent,
    StepFailure,
    StepOutcome,
    StepProgressed,
    StepStarted,
    Usage,
)
from fanfold.ports import OnStepEvent


class Attempt:
    """One attempt of a step, and what the attempts before it came to."""

    __slots__ = ("_before", "_handed_back", "_listener", "_task_id", "number")

    def __init__(
        self, task_id: str, number: int, listener: OnStepEvent | None, before: StepOutcome | None = None
    ) -> None:
        self._task_id = task_id
        self.number = number
        self._listener = listener
        self._before = before
        self._handed_back = NO_USAGE

    def next(self, outcome: StepOutcome) -> Attempt:
        """The attempt after this one, which came to `outcome` together with those before it."""
        return Attempt(self._task_id, self.number + 1, self._listener, outcome)

    def tell(self, event: StepEvent) -> None:
        """Tell what the attempt says; a further one's start is progress of the step (C11)."""
        if self._listener is None:
            return
        if event.task_id != self._task_id:
            event = replace(event, task_id=self._task_id)
        if isinstance(event, StepStarted) and self._before is not None and self._before.failure is not None:
            began = AttemptStarted(attempt=self.number, node=event.node, cause=self._before.failure)
            event = StepProgressed(task_id=event.task_id, time=event.time, progress=began)
        self._listener(event)

    def handed_back(self, usage: Usage) -> None:
        """A node gave the attempt back, after this was spent on it."""
        self._handed_back += usage

    def in_all(self, outcome: StepOutcome) -> StepOutcome:
        """The attempt's outcome as the step's: attempts and usage added up, begun when the first one began (C2)."""
        before = self._before
        if self._handed_back is not NO_USAGE:
            outcome = replace(outcome, usage=self._handed_back + outcome.usage)
        if before is None:
            # Attempts of a former holder are known by their number only.
            return replace(outcome, attempts=outcome.attempts + self.number - 1) if self.number > 1 else outcome
        usage = before.usage + outcome.usage
        if outcome.attempts == 0 and outcome.failure is not None and before.failure is not None:
            # There was no further attempt: what the last one came to stays, with why it was the last.
            why = f"{outcome.failure.message}; the attempt before ended {before.failure.code}: {before.failure.message}"
            failure = replace(outcome.failure, message=why)
            return replace(before, failure=failure, usage=usage, ended_at=outcome.ended_at)
        return replace(
            outcome,
            attempts=before.attempts + outcome.attempts,
            usage=usage,
            started_at=before.started_at or outcome.started_at,
        )


def consistent(outcome: StepOutcome, spec: AgentStepSpec, node: str) -> StepOutcome:
    """What a node sent, made to say what outcomes promise whatever the node is (C2)."""
    told = outcome.task_id, outcome.agent, outcome.node
    if told != (spec.task_id, spec.agent, node):
        outcome = replace(outcome, task_id=spec.task_id, agent=spec.agent, node=node)
    if outcome.attempts > 1:
        outcome = replace(outcome, attempts=1)
    if outcome.success is (outcome.failure is None):
        return outcome
    if outcome.success:
        return replace(outcome, failure=None)
    return replace(outcome, failure=StepFailure(code=FailureCode.INTERNAL, message="the node does not say why"))
