"""Steps that are traced."""

from __future__ import annotations

import asyncio

from coordinator.combinators.runner import StepKey, StepRunner
from coordinator.journal.journal import JournalFailed
from coordinator.scope import Scope
from fanfold.errors import Aborted
from fanfold.model.step import AgentStepSpec, StepOutcome
from fanfold.ports import OnStepEvent


def traced(runner: StepRunner, scope: Scope) -> StepRunner:
    """The runner with a span for each step; itself if the run is not traced."""
    return TracedSteps(runner, scope) if scope.trace.is_on else runner


class TracedSteps:
    """Implements `StepRunner` around another: each step that is run has a span, from its begin to its outcome."""

    def __init__(self, runner: StepRunner, scope: Scope) -> None:
        self._runner = runner
        self._scope = scope

    def concurrency_hint(self) -> int:
        """The runner's."""
        return self._runner.concurrency_hint()

    async def run_step(self, key: StepKey, spec: AgentStepSpec, on_event: OnStepEvent | None) -> StepOutcome:
        """Run one step."""
        trace, name = self._scope.trace, key.name
        trace.begin_step(name, spec)
        try:
            outcome = await self._runner.run_step(key, spec, on_event)
        except asyncio.CancelledError:
            trace.drop_step(name, moved=self._scope.hold.is_given_up)
            raise
        except (Aborted, JournalFailed):  # no fault of the step (see `Gate`)
            trace.drop_step(name, moved=True)
            raise
        except BaseException as error:
            trace.drop_step(name, error=type(error).__name__)
            raise
        trace.end_step(name, outcome)
        return outcome
