"""What a run may spend: set aside before an attempt, charged after it, refused when nothing is left (C13, F10)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.budget import SHARES, WAITS_ON, Reservation, TokenBudget
from coordinator.combinators.budgeted import Budgeted
from coordinator.combinators.parallel import parallel
from coordinator.placement.in_process import InProcessExecutor
from coordinator.waiting import Waiting
from fanfold.agent import AgentResult, StepContext
from fanfold.model.checks import MAX_TOKENS
from fanfold.model.run import Budget
from fanfold.model.step import AgentStepSpec, FailureCode, StepFailure, StepOutcome, StepPolicy, Usage
from fanfold.schema import SchemaValidator

pytestmark = pytest.mark.contract("C13")


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


# What is inherited.


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


# What is set aside, and for whom.


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


# What is charged.


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


# Who waits, and who is refused.


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


# Taken over from another coordinator.


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


# Any order of anything.


@dataclass
class Asked:
    """A step that asked for tokens, and its place among those that did."""

    number: int
    tokens: int
    task: asyncio.Task[Reservation | StepFailure]


@dataclass
class Run:
    """A budget under random work, and what somebody outside knows of it."""

    budget: TokenBudget
    call: int
    """The largest model call, which is how much an attempt may spend beyond its cap."""
    running: list[Reservation] = field(default_factory=list)
    line: list[Asked] = field(default_factory=list)
    asked: int = 0
    charged: int = 0
    refused: int = 0
    overshoot: int = 0
    """What was spent beyond caps, and set aside whether or not it was there, since tokens were last given out."""

    def arrive(self, amount: int, _pick: int) -> None:
        spec, uses_model = step(None if amount % 5 == 1 else amount), amount % 7 != 1
        task = asyncio.create_task(self.budget.reserve(spec, Waiting(), uses_model=uses_model))
        self.asked += 1
        self.line.append(Asked(self.asked, self.budget.needs(spec, uses_model=uses_model), task))

    def end(self, amount: int, pick: int) -> None:
        if (reservation := self._picked(pick)) is not None:
            cost = amount * (reservation.tokens + self.call) // 100
            with reservation:
                reservation.ended(outcome(cost, FailureCode.AGENT_FAILED if amount % 2 else None))
            self._charge(cost, reservation)

    def lose(self, _amount: int, pick: int) -> None:
        if (reservation := self._picked(pick)) is not None:
            with reservation:
                reservation.ended(None)
            self._charge(reservation.tokens, reservation)

    def hand_back(self, _amount: int, pick: int) -> None:
        if (reservation := self._picked(pick)) is not None:
            with reservation:
                pass

    def retry(self, amount: int, pick: int) -> None:
        self.end(amount, pick)
        self.arrive(amount, pick)

    def cancel(self, _amount: int, pick: int) -> None:
        if self.line:
            self.line.pop(pick % len(self.line)).task.cancel()

    def adopt(self, amount: int, _pick: int) -> None:
        self.overshoot += amount
        self.running.append(self.budget.adopt(amount))

    def _picked(self, pick: int) -> Reservation | None:
        return self.running.pop(pick % len(self.running)) if self.running else None

    def _held(self) -> int:
        return sum(reservation.tokens for reservation in self.running)

    def _charge(self, cost: int, reservation: Reservation) -> None:
        self.charged += cost
        self.overshoot += max(0, cost - reservation.tokens)

    async def check(self, *, after_one: bool = True) -> None:
        """See who was answered, and that all is as promised; `after_one` event or after several."""
        await settle()
        granted: list[Asked] = []
        for asked in [each for each in self.line if each.task.done()]:
            self.line.remove(asked)
            answer = asked.task.result()
            if isinstance(answer, Reservation):
                assert answer.tokens == asked.tokens
                granted.append(asked)
                self.running.append(answer)
            else:
                assert asked.tokens + self.charged > self.budget.limit, "refused though it might have had them"
                self.refused += 1
        held = self._held()
        assert self.budget.told() == Budget(limit=self.budget.limit, spent=self.charged, refused_steps=self.refused)
        if after_one and any(each.tokens for each in granted):
            self.overshoot = 0  # it was made up for: nothing is given out beyond the limit
        assert self.charged + held <= self.budget.limit + self.overshoot
        if self.line:
            first = self.line[0]
            assert held > 0, "nobody waits while nothing runs"
            assert self.charged + held + first.tokens > self.budget.limit, "the first one waits for nothing"
            assert self.charged + first.tokens <= self.budget.limit, "the first one waits in vain"
            assert all(each.number < first.number for each in granted if each.tokens), "the first one was overtaken"

    async def finish(self) -> None:
        """End all that runs, and what gets its turn by that."""
        while self.running:
            self.end(50, 0)
            await self.check()
        assert self.line == []


Operation = Callable[[Run, int, int], None]
HONEST: Sequence[Operation] = [
    Run.arrive,
    Run.arrive,
    Run.arrive,
    Run.end,
    Run.lose,
    Run.hand_back,
    Run.retry,
    Run.cancel,
]


def operations(kinds: Sequence[Operation]) -> st.SearchStrategy[list[tuple[int, int, int]]]:
    return st.lists(st.tuples(st.integers(0, len(kinds) - 1), st.integers(0, 100), st.integers(0, 9)), max_size=60)


async def carry_out(run: Run, kinds: Sequence[Operation], work: list[tuple[int, int, int]], *, together: bool) -> None:
    for kind, amount, pick in work:
        kinds[kind](run, amount, pick)
        if not (together and amount % 2):  # some things happen before anybody wakes
            await run.check(after_one=not together)
    await run.check(after_one=not together)
    await run.finish()


@given(limit=st.integers(0, 300), steps=st.integers(1, 9), work=operations(HONEST), together=st.booleans())
@settings(max_examples=400, deadline=None)
def test_where_caps_are_kept_no_order_of_events_spends_more_than_the_limit(
    limit: int, steps: int, work: list[tuple[int, int, int]], together: bool
) -> None:
    run = Run(TokenBudget(limit, steps=steps), call=0)
    asyncio.run(carry_out(run, HONEST, work, together=together))
    assert run.overshoot == 0
    assert run.budget.spent <= limit


@given(limit=st.integers(0, 300), work=operations([*HONEST, Run.adopt]), together=st.booleans())
@settings(max_examples=400, deadline=None)
def test_where_they_are_not_all_is_charged_and_nobody_waits_in_vain(
    limit: int, work: list[tuple[int, int, int]], together: bool
) -> None:
    run = Run(TokenBudget(limit), call=20)
    asyncio.run(carry_out(run, [*HONEST, Run.adopt], work, together=together))
    assert run.budget.spent <= limit + run.overshoot


# Over an executor that knows of no budget.


class Calls:
    """What an agent of this process spends: the calls that its prompt names, each told when it was made."""

    def __init__(self) -> None:
        self.at_once = 0
        self.most_at_once = 0

    async def agent(self, spec: AgentStepSpec, context: StepContext) -> AgentResult:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await self._spend(spec, context)
        finally:
            self.at_once -= 1

    async def _spend(self, spec: AgentStepSpec, context: StepContext) -> AgentResult:
        spent = 0
        for turn, call in enumerate(map(int, spec.prompt.split()), start=1):
            await asyncio.sleep(0)
            spent += call
            context.turn_finished(turn, Usage(output_tokens=spent, requests=turn))
        return AgentResult(output=str(spent), usage=Usage(output_tokens=spent))


CALLS = st.lists(st.integers(0, 20), max_size=5)


@given(
    limit=st.integers(0, 200),
    steps=st.lists(st.tuples(CALLS, st.none() | st.integers(0, 60)), max_size=12),
    parallelism=st.integers(1, 6),
)
@settings(max_examples=100, deadline=None)
def test_a_fan_out_overshoots_by_one_call_of_each_running_step_at_most(
    limit: int, steps: list[tuple[list[int], int | None]], parallelism: int
) -> None:
    async def fan_out() -> None:
        calls, budget = Calls(), TokenBudget(limit, steps=len(steps))
        executor = Budgeted(InProcessExecutor({"a": calls.agent}, SchemaValidator(), parallelism=parallelism), budget)
        specs = [
            step(most, task_id=str(number), prompt=" ".join(map(str, [0, *made])))
            for number, (made, most) in enumerate(steps)
        ]
        outcomes = await asyncio.wait_for(parallel(executor, specs), 20)
        assert budget.spent == sum(each.usage.tokens for each in outcomes), "refunds are exact"
        assert budget.spent <= limit + 20 * max(1, calls.most_at_once)
        refused = [each for each in outcomes if each.attempts == 0]
        assert len(refused) == budget.refused_steps
        assert {each.failure.code for each in refused if each.failure} <= {FailureCode.BUDGET_EXHAUSTED}
        for spec, each in zip(specs, outcomes, strict=True):
            asked = sum(map(int, spec.prompt.split()))
            assert each.success is (each.usage.tokens == asked and each.attempts == 1 and each.failure is None)

    asyncio.run(fan_out())


@pytest.mark.contract("C13")
def test_what_is_set_aside_for_attempts_of_which_nothing_more_is_told_is_charged_within_the_limit() -> None:
    budget = TokenBudget(100, spent=60)
    with budget.adopt(30) as reservation:
        budget.forfeit()
        assert budget.told().spent == 90
        reservation.cost = 0
    assert budget.told().spent == 90
