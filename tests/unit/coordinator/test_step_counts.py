"""How a coordinator counts steps as they end, whoever runs them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from coordinator.budget import TokenBudget
from coordinator.combinators.budgeted import Budgeted
from coordinator.combinators.counted import Counted
from coordinator.combinators.runner import StepKey, run_to_end
from coordinator.counts import StepCounts
from coordinator.scope import Hold
from fanfold.measures import MAX_AGENTS, OTHER
from fanfold.model.step import NO_USAGE, AgentStepSpec, FailureCode, StepFailure, StepOutcome, Usage
from fanfold.ports import OnStepEvent, Rejection, RejectionReason

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = AgentStepSpec(task_id="t", agent="a", description="d", prompt="p")


def outcome(
    agent: str = "a", code: FailureCode | None = None, *, attempts: int = 1, usage: Usage = NO_USAGE
) -> StepOutcome:
    return StepOutcome(
        task_id="t",
        agent=agent,
        success=code is None,
        failure=None if code is None else StepFailure(code=code, message="m"),
        attempts=attempts,
        usage=usage,
        started_at=NOW if attempts else None,
        ended_at=NOW + timedelta(seconds=2),
    )


def test_a_step_is_counted_by_agent_and_code_with_its_duration_and_its_cost() -> None:
    counts = StepCounts()
    counts.note_ended(outcome(usage=Usage(input_tokens=30, output_tokens=4, requests=2)))
    counts.note_ended(outcome(code=FailureCode.TIMED_OUT))
    assert counts.ended == {("a", "OK"): 1, ("a", "TIMED_OUT"): 1}
    assert counts.seconds["a",].total == 4.0
    assert counts.tokens == {("a", "input"): 30, ("a", "output"): 4}
    assert counts.model_requests == {("a",): 2}


def test_a_step_that_ended_before_it_began_by_the_clocks_of_its_nodes_took_no_time() -> None:
    counts = StepCounts()
    counts.note_ended(replace(outcome(), ended_at=NOW - timedelta(seconds=2)))
    assert (counts.seconds["a",].total, sum(counts.seconds["a",].counts)) == (0.0, 1)


def test_agents_that_no_step_got_as_far_as_are_not_told_apart_whatever_they_are_called() -> None:
    counts = StepCounts()
    for number in range(MAX_AGENTS):
        counts.note_ended(outcome(f"made-up-{number}", FailureCode.AGENT_UNKNOWN, attempts=0))
        cancelled = AgentStepSpec(task_id="t", agent=f"also-{number}", description="d", prompt="p")
        counts.note_raised(cancelled, asyncio.CancelledError())
    assert counts.ended == {(OTHER, "AGENT_UNKNOWN"): MAX_AGENTS, (OTHER, "CANCELLED"): MAX_AGENTS}
    counts.note_ended(outcome("real"))
    counts.note_ended(outcome("real", FailureCode.UNPLACEABLE, attempts=0))
    assert counts.ended["real", "OK"] == counts.ended["real", "UNPLACEABLE"] == 1


def test_what_a_budget_refused_is_told_from_what_had_spent_too_much() -> None:
    counts = StepCounts()
    counts.note_ended(outcome(code=FailureCode.BUDGET_EXHAUSTED))
    counts.note_ended(outcome(code=FailureCode.BUDGET_EXHAUSTED, attempts=0))
    assert counts.ended["a", "BUDGET_EXHAUSTED"] == 2
    assert counts.refused_by_budget == {("a",): 1}


def test_executions_are_counted_by_how_they_left_their_nodes() -> None:
    counts = StepCounts()
    counts.note_placement(outcome(code=FailureCode.CRASHED))
    counts.note_placement(Rejection(reason=RejectionReason.AGENT_NOT_OFFERED))
    counts.note_placement(None)
    assert counts.placements == {("ended",): 1, ("agent_not_offered",): 1, ("lost",): 1}


class Executor:
    """Fails every step whose prompt is not `wait`, which it never ends, or `raise`."""

    def concurrency_hint(self) -> int:
        return 3

    async def execute_step(self, spec: AgentStepSpec, on_event: OnStepEvent | None = None) -> StepOutcome:
        if spec.prompt == "wait":
            await asyncio.Event().wait()
        if spec.prompt == "raise":
            raise RuntimeError("it is no executor")
        return outcome(code=FailureCode.AGENT_FAILED)


@pytest.mark.contract("C8")
async def test_steps_of_an_executor_that_knows_nothing_of_this_are_counted_too() -> None:
    counts = StepCounts()
    executor = Counted(Executor(), counts)
    assert executor.concurrency_hint() == 3
    assert (await executor.execute_step(SPEC)).failure is not None
    waiting = asyncio.create_task(
        executor.execute_step(AgentStepSpec(task_id="t", agent="a", description="d", prompt="wait"))
    )
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    raises = AgentStepSpec(task_id="t", agent="a", description="d", prompt="raise")
    raised = await run_to_end(executor, StepKey.of_spec(0, raises), raises, None)
    assert raised.failure is not None
    assert raised.failure.code is FailureCode.INTERNAL
    assert counts.ended == {("a", "AGENT_FAILED"): 1, ("a", "CANCELLED"): 1, ("a", "INTERNAL"): 1}


@pytest.mark.contract("C8", "C13", "C43")
async def test_a_step_of_a_named_executor_that_is_stopped_as_its_run_moves_has_not_ended() -> None:
    counts, hold, budget = StepCounts(), Hold(), TokenBudget(100, steps=1)

    def is_given_up() -> bool:
        return hold.is_given_up

    executor = Counted(Budgeted(Executor(), budget, is_given_up=is_given_up), counts, is_given_up)
    spec = AgentStepSpec(task_id="t", agent="a", description="d", prompt="wait")
    waiting = asyncio.create_task(executor.execute_step(spec))
    await asyncio.sleep(0)
    assert budget.reserved == 100
    hold.give_up()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert counts.ended == {}
    assert (budget.spent, budget.reserved) == (0, 0), "the next holder charges it, as nobody knows what it has spent"


@pytest.mark.contract("C8", "C13")
async def test_steps_that_the_budget_of_a_named_executor_refuses_are_counted_too() -> None:
    counts, budget = StepCounts(), TokenBudget(0, steps=1)
    executor = Counted(Budgeted(Executor(), budget), counts)
    assert executor.needs(SPEC) == Budgeted(Executor(), budget).needs(SPEC) > 0
    refused = await executor.execute_step(SPEC)
    assert refused.failure is not None
    assert counts.refused_by_budget == {(OTHER,): 1}
    assert counts.ended == {(OTHER, "BUDGET_EXHAUSTED"): 1}
