"""An executor that counts none of its steps, counted."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.combinators.runner import Spender, StepKey, runner_of
from coordinator.counts import StepCounts
from fanfold.model.step import AgentStepSpec, StepOutcome
from fanfold.ports import AgentExecutor, OnStepEvent


class Counted:
    """Implements `AgentExecutor` and `StepRunner` around another executor, and counts how its steps end.

    Steps that are stopped as `is_given_up` says that their run goes on elsewhere are counted there.
    """

    def __init__(
        self, executor: AgentExecutor, counts: StepCounts, is_given_up: Callable[[], bool] = lambda: False
    ) -> None:
        self._runner = runner_of(executor)
        self._counts = counts
        self._is_given_up = is_given_up

    def concurrency_hint(self) -> int:
        """The executor's."""
        return self._runner.concurrency_hint()

    def needs(self, spec: AgentStepSpec) -> int:
        """What the executor sets aside of the run's budget for the step, if it keeps one (Spender)."""
        return self._runner.needs(spec) if isinstance(self._runner, Spender) else 0

    async def execute_step(self, spec: AgentStepSpec, on_event: OnStepEvent | None = None) -> StepOutcome:
        """Run one step whose task id is unique, as `run_step` does."""
        return await self.run_step(StepKey.of_spec(0, spec), spec, on_event)

    async def run_step(self, key: StepKey, spec: AgentStepSpec, on_event: OnStepEvent | None) -> StepOutcome:
        """Run one step."""
        try:
            outcome = await self._runner.run_step(key, spec, on_event)
        except BaseException as error:
            if not self._is_given_up():
                self._counts.note_raised(spec, error)
            raise
        self._counts.note_ended(outcome)
        return outcome
