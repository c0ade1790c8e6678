"""A budget over an executor that knows of none (C8, C13)."""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial

from coordinator.budget import Reservation, TokenBudget
from coordinator.combinators.runner import StepKey, runner_of
from coordinator.life import StepLife, unplaced
from coordinator.waiting import Waiting
from fanfold.model.step import AgentStepSpec, StepEnded, StepEvent, StepFailure, StepOutcome
from fanfold.ports import AgentExecutor, OnStepEvent


def _yes(_agent: str) -> bool:
    return True


class Budgeted:
    """Implements `AgentExecutor` and `StepRunner` around another executor: its steps spend no more than the budget.

    Whatever the executor does for a step counts as one attempt. `uses_model` says of an agent whether its steps may
    spend anything; `waiting` is told of steps that wait for tokens. Steps that are `unaccounted`, by position and
    stage, were begun before, and nobody knows what they have spent. So it is for whoever goes on with a run of those
    that are stopped as `is_given_up` says that it goes on elsewhere: they are charged there.
    """

    def __init__(
        self,
        executor: AgentExecutor,
        budget: TokenBudget,
        *,
        waiting: Waiting | None = None,
        uses_model: Callable[[str], bool] = _yes,
        unaccounted: Container[tuple[int, int]] = (),
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._runner = runner_of(executor)
        self._budget = budget
        self._waiting = waiting or Waiting()
        self._uses_model = uses_model
        self._unaccounted = unaccounted
        self._is_given_up = is_given_up

    def needs(self, spec: AgentStepSpec) -> int:
        """What is set aside for the step (Spender)."""
        return self._budget.needs(spec, uses_model=self._uses_model(spec.agent))

    def concurrency_hint(self) -> int:
        """The executor's."""
        return self._runner.concurrency_hint()

    async def execute_step(self, spec: AgentStepSpec, on_event: OnStepEvent | None = None) -> StepOutcome:
        """Run one step whose task id is unique, as `run_step` does."""
        return await self.run_step(StepKey.of_spec(0, spec), spec, on_event)

    async def run_step(self, key: StepKey, spec: AgentStepSpec, on_event: OnStepEvent | None) -> StepOutcome:
        """Run one step once there are tokens for it; it ends BUDGET_EXHAUSTED if there never will be."""
        if (key.position, key.stage) in self._unaccounted:
            with self._budget.adopt(self.needs(spec)) as lost:
                lost.ended(None)
        with self._waiting.step():
            reservation = await self._budget.reserve(spec, self._waiting, uses_model=self._uses_model(spec.agent))
            if isinstance(reservation, StepFailure):
                return StepLife(spec, on_event).end(unplaced(spec, reservation))
            with reservation:
                reservation.ended(None)  # as far as is known if it raises, or is cancelled
                listener = partial(_tell, reservation, on_event) if on_event else None
                try:
                    outcome = await self._runner.run_step(key, reservation.cap(spec), listener)
                except BaseException:
                    if self._is_given_up():
                        reservation.cost = 0
                    raise
                reservation.ended(outcome)
                return outcome


def _tell(reservation: Reservation, on_event: OnStepEvent, event: StepEvent) -> None:
    """Tell an event; who hears that the step has ended finds its cost charged."""
    if isinstance(event, StepEnded):
        reservation.ended(event.outcome)
        reservation.close()
    on_event(event)
