"""The seam between combinators and whatever runs their steps within a run."""

from __future__ import annotations

import logging
from typing import NamedTuple, Protocol, runtime_checkable

from coordinator.life import StepLife, failed
from fanfold.model.step import AgentStepSpec, FailureCode, StepOutcome
from fanfold.ports import AgentExecutor, OnStepEvent

_log = logging.getLogger(__name__)


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


@runtime_checkable
class StepRunner(Protocol):
    """Runs the steps of one run, each by its key. What a run adds to its executor (recall, budget, pace) wraps one."""

    async def run_step(self, key: StepKey, spec: AgentStepSpec, on_event: OnStepEvent | None) -> StepOutcome:
        """Run one step to its end (as `AgentExecutor.execute_step`); `run_to_end` sees to the order of its events."""
        ...

    def concurrency_hint(self) -> int:
        """Steps it would like to have at once (C10)."""
        ...


@runtime_checkable
class Spender(Protocol):
    """A runner that keeps its steps within the budget of their run."""

    def needs(self, spec: AgentStepSpec) -> int:
        """Tokens that are set aside for an attempt of the step."""
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


def runner_of(executor: AgentExecutor) -> StepRunner:
    """The executor as a runner: itself if it is one."""
    return executor if isinstance(executor, StepRunner) else Unkeyed(executor)


async def run_to_end(
    runner: StepRunner, key: StepKey, spec: AgentStepSpec, listener: OnStepEvent | None
) -> StepOutcome:
    """Run one step and tell its life in order, whatever the runner does: what it raises is the step's failure (C11)."""
    life = StepLife(spec, listener)
    try:
        outcome = await runner.run_step(key, spec, life.tell if listener else None)
    except Exception as error:  # it must not touch the siblings (C12)
        _log.exception("the executor raised for a step")
        outcome = failed(spec, FailureCode.INTERNAL, f"the executor raised {type(error).__name__}")
    return life.end(outcome)
