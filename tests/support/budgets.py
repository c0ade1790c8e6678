"""Steps, outcomes and reservations for tests of budgets."""

from __future__ import annotations

import asyncio

from coordinator.budget import Reservation, TokenBudget
from coordinator.waiting import Waiting
from fanfold.model.step import AgentStepSpec, FailureCode, StepFailure, StepOutcome, StepPolicy, Usage


def step(max_tokens: int | None = None, *, task_id: str = "t", prompt: str = "p") -> AgentStepSpec:
    policy = StepPolicy(max_tokens=max_tokens)
    return AgentStepSpec(task_id=task_id, agent="a", description="d", prompt=prompt, policy=policy)


def outcome(tokens: int = 0, code: FailureCode | None = None) -> StepOutcome:
    failure = None if code is None else StepFailure(code=code, message="m")
    usage = Usage(input_tokens=tokens // 2, output_tokens=tokens - tokens // 2)
    return StepOutcome(task_id="t", agent="a", success=failure is None, failure=failure, usage=usage)


async def reserved(
    budget: TokenBudget, max_tokens: int | None = None, *, uses_model: bool = True
) -> Reservation | StepFailure:
    return await asyncio.wait_for(budget.reserve(step(max_tokens), Waiting(), uses_model=uses_model), 5)


async def taken(budget: TokenBudget, max_tokens: int | None = None) -> Reservation:
    reservation = await reserved(budget, max_tokens)
    assert isinstance(reservation, Reservation)
    return reservation


def spend(reservation: Reservation, tokens: int) -> None:
    with reservation:
        reservation.ended(outcome(tokens))


async def settle() -> None:
    """Let every task come as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)
