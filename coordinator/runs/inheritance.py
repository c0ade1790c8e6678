"""What a run's former holders have set aside of its budget, and what has become of it (C13, C19)."""

from __future__ import annotations

from coordinator.combinators.runner import Spender, StepRunner
from coordinator.runs.history import History
from coordinator.runs.work import Work
from coordinator.scope import Scope


def inherit(scope: Scope, runner: StepRunner, work: Work, history: History) -> None:
    """Set aside what runs on, and charge what is lost, before anything is set aside anew: it was within the limit.

    Steps that are not known before they are asked for are charged when they are.
    """
    budget = scope.budget
    if budget is None or not isinstance(runner, Spender):
        return
    lost = set(history.begun) if scope.lost_nodes else set()
    known_as_lost = []
    for key, spec in work.known_steps():
        place = key.position, key.stage
        if place in history.ended:  # what a node still holds of it was charged with its end
            continue
        if key.name in scope.adopted:
            budget.inherit(key.name, runner.needs(spec))
        elif place in lost:
            known_as_lost.append(spec)
        lost.discard(place)
    for spec in known_as_lost:
        budget.lose(runner.needs(spec))
    scope.unaccounted.update(lost)
