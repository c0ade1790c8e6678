"""An executor that counts none of its steps, counted."""

from __future__ import annotations

import asyncio

from coordinator.combinators.runner import StepKey, runner_of
from coordinator.counts import StepCounts
from fanfold.model.step import AgentStepSpec, StepOutcome
from fanfold.ports import AgentExecutor, OnStepEvent


class Counted:
    """Implements `AgentExecutor` and `StepRunner` around another executor, and counts how its steps end."""

    def __init__(self, executor: AgentExecutor, counts: StepCounts) -> None:
        self._runner = runner_of(executor)
        self._counts = counts

    def concurrency_hint(self) -> int:
        """The executor's."""
        return self._runner.concurrency_hint()

    async def execute_step(self, spec: AgentStepSpec, on_event: OnStepEvent | None = None) -> StepOutcome:
        """Run one step whose task id is unique, as `run_step` does."""
        return await self.run_step(StepKey.of_spec(0, spec), spec, on_event)

    async def run_step(self, key: StepKey, spec: AgentStepSpec, on_event: OnStepEvent | None) -> StepOutcome:
        """Run one step."""
        try:
            outcome = await self._runner.run_step(key, spec, on_event)
        except asyncio.CancelledError:
            self._counts.note_cancelled(spec)
            raise
        self._counts.note_ended(outcome)
        return outcome
