"""What a run has left undone because a model's provider had no quota left: it has not completed then (C24, F8)."""

from __future__ import annotations

from dataclasses import dataclass

from fanfold.model.step import FailureCode, StepOutcome


@dataclass(slots=True)
class Shortfall:
    """The steps of a run that have ended QUOTA_EXHAUSTED."""

    steps: int = 0
    first: str = ""
    """What the first of them says."""

    def note(self, outcome: StepOutcome) -> None:
        """Take the next outcome into account."""
        failure = outcome.failure
        if failure is not None and failure.code is FailureCode.QUOTA_EXHAUSTED:
            self.steps += 1
            self.first = self.first or f"{outcome.task_id}: {failure.message}"

    @property
    def reason(self) -> str:
        """Why the run has not completed; empty if there was quota for all of its steps."""
        if not self.steps:
            return ""
        return f"there was no quota for {self.steps:,} {'step' if self.steps == 1 else 'steps'} ({self.first})"
