"""Budgets: what is set aside for whom, and what is charged (C13)."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.budget import SHARES, Reservation, TokenBudget
from fanfold.model.checks import MAX_TOKENS
from fanfold.model.run import Budget
from fanfold.model.step import FailureCode, StepFailure, StepOutcome
from support.budgets import outcome, reserved, settle, spend, step, taken

pytestmark = pytest.mark.contract("C13")


@pytest.mark.contract("C19")
async def test_what_a_former_holder_has_set_aside_is_nobody_elses_until_its_step_has_it() -> None:
    budget = TokenBudget(100, spent=10)
    budget.inherit("a", 60)
    assert (await taken(budget, 30)).tokens == 30
    waiting = asyncio.ensure_future(reserved(budget, 30))
    await settle()
    assert not waiting.done()
    spend(budget.inherited("a", 40), 20)
    assert isinstance(await waiting, Reservation)
    assert budget.spent == 30
    assert budget.inherited("a", 40).tokens == 40, "it is given once"


@pytest.mark.contract("C19")
async def test_what_a_former_holder_has_lost_is_charged_within_the_limit() -> None:
    budget = TokenBudget(100, spent=10)
    budget.inherit("a", 30)
    budget.lose(40)
    assert budget.spent == 50
    budget.lose(40)
    assert budget.spent == 70, "it was charged before, by another holder: all of it never was within the limit"
    budget.lose(40)
    assert budget.spent == 70


async def test_a_step_that_names_no_cap_gets_the_limit_divided_by_the_steps() -> None:
    assert (await taken(TokenBudget(1000, steps=3))).tokens == 333
    assert (await taken(TokenBudget(1000))).tokens == 1000 // SHARES
    assert (await taken(TokenBudget(1000, steps=3), 50)).tokens == 50
    assert (await taken(TokenBudget(2, steps=3))).tokens == 1, "or a small budget would be one without bounds"


async def test_what_was_set_aside_is_the_cap_of_the_step_that_is_dispatched() -> None:
    budget = TokenBudget(1000, steps=4)
    assert (await taken(budget)).cap(step()).policy.max_tokens == 250
    own = step(100)
    assert (await taken(budget, 100)).cap(own) is own
    assert Reservation().cap(own) is own
    assert Reservation().cap(step()).policy.max_tokens is None


@pytest.mark.parametrize("limit", [0, 5])
async def test_a_step_that_spends_nothing_needs_no_tokens(limit: int) -> None:
    budget = TokenBudget(limit, steps=1)
    await taken(budget, limit)  # all of it
    without_model = await reserved(budget, 100, uses_model=False)
    assert isinstance(without_model, Reservation)
    assert without_model.cap(step(100)).policy.max_tokens == 100
    assert (await taken(budget, 0)).tokens == 0
    assert budget.told() == Budget(limit=limit)


async def test_0_is_a_budget_that_refuses_every_step_that_would_spend() -> None:
    budget = TokenBudget(0, steps=10)
    refused = await reserved(budget)
    assert refused == StepFailure(
        code=FailureCode.BUDGET_EXHAUSTED,
        message="it may spend 1 tokens, and 0 of the budget of 0 are left",
    )
    assert isinstance(await reserved(budget, 7), StepFailure)
    assert budget.told() == Budget(limit=0, spent=0, refused_steps=2)


async def test_a_step_that_may_spend_nothing_but_could_is_refused_once_too_much_was_spent() -> None:
    budget = TokenBudget(10, steps=1)
    spend(await taken(budget, 10), 11)
    assert isinstance(await reserved(budget, 0), StepFailure)
    assert isinstance(await reserved(budget, 0, uses_model=False), Reservation)


@pytest.mark.parametrize(
    ("ended", "charged"),
    [
        (outcome(30), 30),
        (outcome(0), 0),
        (outcome(30, FailureCode.CRASHED), 30),
        (outcome(0, FailureCode.CRASHED), 0),
        (outcome(150), 150),
        (outcome(30, FailureCode.NODE_LOST), 30),
        (outcome(0, FailureCode.NODE_LOST), 100),
        (outcome(0, FailureCode.INTERNAL), 100),
        (None, 100),
    ],
)
async def test_an_attempt_is_charged_what_it_told_or_all_if_that_is_unknown(
    ended: StepOutcome | None, charged: int
) -> None:
    budget = TokenBudget(1000, steps=10)
    with await taken(budget) as reservation:
        reservation.ended(ended)
        assert budget.spent == 0
    assert budget.spent == charged
    assert (await taken(budget, 1000 - charged)).tokens == 1000 - charged, "and no more is kept"


async def test_an_attempt_that_never_came_about_costs_nothing() -> None:
    budget = TokenBudget(100, steps=1)
    with pytest.raises(RuntimeError), await taken(budget):
        raise RuntimeError
    assert budget.spent == 0
    assert (await taken(budget)).tokens == 100


async def test_a_reservation_is_settled_once() -> None:
    budget = TokenBudget(100, steps=1)
    reservation = await taken(budget, 60)
    spend(reservation, 60)
    spend(reservation, 60)
    assert budget.spent == 60


async def test_spending_stops_counting_where_no_number_goes_on() -> None:
    budget = TokenBudget(MAX_TOKENS, steps=1)
    for _ in range(3):
        reservation = budget.adopt(1)
        with reservation:
            reservation.cost = MAX_TOKENS
    assert budget.spent == MAX_TOKENS


@pytest.mark.contract("C13")
def test_what_is_set_aside_for_attempts_of_which_nothing_more_is_told_is_charged_within_the_limit() -> None:
    budget = TokenBudget(100, spent=60)
    with budget.adopt(30) as reservation:
        budget.forfeit()
        assert budget.told().spent == 90
        reservation.cost = 0
    assert budget.told().spent == 90
