"""Who waits for tokens of a budget, who is refused, and what a take-over finds set aside (C13)."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.budget import WAITS_ON, Reservation, TokenBudget
from coordinator.waiting import Waiting
from fanfold.model.run import Budget
from fanfold.model.step import StepFailure
from support.budgets import reserved, settle, spend, step, taken

pytestmark = pytest.mark.contract("C13")


async def test_a_step_waits_while_a_running_one_may_return_enough() -> None:
    budget, waiting = TokenBudget(100, steps=1), Waiting()
    first = await taken(budget, 80)
    with waiting.step():
        second = asyncio.create_task(budget.reserve(step(60), waiting, uses_model=True))
        await settle()
        assert not second.done()
        assert waiting.summary() == WAITS_ON
        spend(first, 40)
        reservation = await asyncio.wait_for(second, 1)
        assert waiting.summary() == ""
    assert isinstance(reservation, Reservation)
    assert budget.told() == Budget(limit=100, spent=40)


async def test_a_step_that_waited_is_refused_once_nothing_can_return_enough() -> None:
    budget = TokenBudget(100, steps=1)
    first, other = await taken(budget, 60), await taken(budget, 40)
    second = asyncio.create_task(reserved(budget, 60))
    await settle()
    spend(other, 10)
    await settle()
    assert not second.done()
    spend(first, 31)
    refused = await second
    assert isinstance(refused, StepFailure)
    assert refused.message == "it may spend 60 tokens, and 59 of the budget of 100 are left"
    assert budget.told() == Budget(limit=100, spent=41, refused_steps=1)


async def test_what_will_never_fit_is_refused_at_once_also_while_others_wait() -> None:
    budget = TokenBudget(100, steps=1)
    first = await taken(budget, 80)
    spend(await taken(budget, 20), 20)
    waits = asyncio.create_task(reserved(budget, 80))
    await settle()
    assert isinstance(await reserved(budget, 81), StepFailure)
    spend(first, 0)
    assert isinstance(await waits, Reservation)


async def test_one_that_needs_much_is_not_overtaken_by_those_that_need_little() -> None:
    budget = TokenBudget(100, steps=1)
    first, other = await taken(budget, 50), await taken(budget, 50)
    order: list[str] = []

    async def wait(name: str, tokens: int) -> None:
        await taken(budget, tokens)
        order.append(name)

    tasks = [asyncio.create_task(wait("fat", 90))]
    await settle()
    tasks.append(asyncio.create_task(wait("thin", 10)))
    spend(first, 0)
    await settle()
    assert order == [], "there were 50 for the thin one, which came later"
    spend(other, 0)
    await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert order == ["fat", "thin"]


@pytest.mark.parametrize("turns", range(4))
async def test_a_step_that_is_cancelled_while_it_waits_holds_nothing(turns: int) -> None:
    budget = TokenBudget(100, steps=1)
    first = await taken(budget, 100)
    second = asyncio.create_task(reserved(budget, 100))
    third = asyncio.create_task(taken(budget, 100))
    await settle()
    task = second
    if turns:
        spend(first, 0)  # the tokens are the second one's, which does not know it yet
    for _ in range(turns - 1):
        await asyncio.sleep(0)
    task.cancel()
    if not turns:
        spend(first, 0)
    given = (await asyncio.gather(second, return_exceptions=True))[0]
    if isinstance(given, Reservation):
        spend(given, 0)
    assert (await asyncio.wait_for(third, 5)).tokens == 100


async def test_the_first_refusal_is_told_once_with_how_the_budget_stands() -> None:
    budget = TokenBudget(100, steps=1)
    told: list[Budget] = []
    budget.on_exhausted.append(lambda: told.append(budget.told()))
    spend(await taken(budget, 70), 70)
    for _ in range(3):
        await reserved(budget, 40)
    assert told == [Budget(limit=100, spent=70, refused_steps=1)]
    assert budget.refused_steps == 3


async def test_a_budget_goes_on_from_what_was_spent_before() -> None:
    budget = TokenBudget(100, steps=4, spent=70, refused_steps=2, is_exhausted=True)
    told: list[Budget] = []
    budget.on_exhausted.append(lambda: told.append(budget.told()))
    assert isinstance(await reserved(budget, 31), StepFailure)
    assert told == [], "a former holder has told it"
    spend(await taken(budget), 25)
    assert budget.told() == Budget(limit=100, spent=95, refused_steps=3)


async def test_attempts_that_run_already_have_theirs_set_aside_whatever_is_left() -> None:
    budget = TokenBudget(100, steps=4, spent=90)
    running, lost = budget.adopt(25), budget.adopt(25)
    waits = asyncio.create_task(reserved(budget, 10))
    await settle()
    assert not waits.done()
    spend(running, 0)
    with lost:
        lost.ended(None)
    assert isinstance(await waits, StepFailure)
    assert budget.told() == Budget(limit=100, spent=115, refused_steps=1)
