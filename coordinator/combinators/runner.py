"""The seam between combinators and whatever runs their steps within a run."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from fanfold.model.step import AgentStepSpec, StepOutcome
from fanfold.ports import AgentExecutor, OnStepEvent


class StepKey(NamedTuple):
    """Where a step stands in its run, and what it is called there: its key in the checkpoint (C7)."""

    position: int
    stage: int
    name: str

    @classmethod
    def of_spec(cls, position: int, spec: AgentStepSpec) -> StepKey:
        """The key of a parallel run's step: its task id."""
        return cls(position, 0, spec.task_id)

    @classmethod
    def of_stage(cls, position: int, stage: int) -> StepKey:
        """The key of a pipeline's step: item and stage, as task ids are unique within an item only (C14)."""
        return cls(position, stage, f"{position}.{stage}")


class StepRunner(Protocol):
    """Runs the steps of one run, each by its key. What a run adds to its executor (recall, budget, pace) wraps one."""

    async def run_step(self, key: StepKey, spec: AgentStepSpec, on_event: OnStepEvent | None) -> StepOutcome:
        """Run one step to its end (as `AgentExecutor.execute_step`)."""
        ...

    def concurrency_hint(self) -> int:
        """Steps it would like to have at once (C10)."""
        ...


class Unkeyed:
    """Implements `StepRunner` with any executor, which need not know the keys."""

    def __init__(self, executor: AgentExecutor) -> None:
        self._executor = executor

    def concurrency_hint(self) -> int:
        """The executor's."""
        return self._executor.concurrency_hint()

    async def run_step(self, key: StepKey, spec: AgentStepSpec, on_event: OnStepEvent | None) -> StepOutcome:
        """Run one step."""
        return await self._executor.execute_step(spec, on_event)
