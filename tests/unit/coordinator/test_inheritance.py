"""What becomes of the tokens that a run's former holders have set aside (C13, C19)."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.budget import TokenBudget
from coordinator.combinators.runner import StepKey
from coordinator.runs.history import History
from coordinator.runs.inheritance import inherit
from coordinator.runs.work import ParallelWork
from coordinator.scope import Scope
from fanfold.model.step import AgentStepSpec, StepOutcome, StepPolicy
from fanfold.ports import OnStepEvent

pytestmark = pytest.mark.contract("C13", "C19")

SPECS = [
    AgentStepSpec(task_id=name, agent="a", description="d", prompt="p", policy=StepPolicy(max_tokens=tokens))
    for name, tokens in (("ended", 1), ("runs", 20), ("lost", 300), ("new", 4_000))
]


class Runner:
    """Runs nothing."""

    def needs(self, spec: AgentStepSpec) -> int:
        return spec.policy.max_tokens or 0

    def concurrency_hint(self) -> int:
        return 1

    async def run_step(self, key: StepKey, spec: AgentStepSpec, on_event: OnStepEvent | None) -> StepOutcome:
        raise AssertionError


def inherited(budget: TokenBudget, *lost_nodes: str) -> Scope:
    """A run whose first step has ended and whose next two have begun; nodes still hold something of the first two."""
    held: Any = object()
    scope = Scope(run_id="run-1", owner="alice", progress=True, budget=budget, adopted={"ended": held, "runs": held})
    scope.lost_nodes.update(lost_nodes)
    history = History(begun={(1, 0), (2, 0)}, ended={(0, 0)})
    inherit(scope, Runner(), ParallelWork(SPECS), history)
    return scope


def test_what_runs_on_is_set_aside_and_what_is_lost_is_charged() -> None:
    budget = TokenBudget(10_000, spent=5)
    scope = inherited(budget, "node-1")
    assert budget.spent == 305
    assert budget.inherited("runs", 0).tokens == 20
    assert budget.inherited("ended", 0).tokens == 0, "it was charged when it ended"
    assert scope.unaccounted == set()


def test_what_has_begun_on_nodes_that_are_there_is_not_charged() -> None:
    budget = TokenBudget(10_000, spent=5)
    inherited(budget)
    assert budget.spent == 5
