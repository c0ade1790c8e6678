"""Budgets under any order of events, and over an executor that knows of none (C13)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.budget import Reservation, TokenBudget
from coordinator.combinators.budgeted import Budgeted
from coordinator.combinators.parallel import parallel
from coordinator.placement.in_process import InProcessExecutor
from coordinator.waiting import Waiting
from fanfold.agent import AgentResult, StepContext
from fanfold.model.run import Budget
from fanfold.model.step import AgentStepSpec, FailureCode, StepFailure, Usage
from fanfold.schema import SchemaValidator
from support.budgets import outcome, settle, step

pytestmark = pytest.mark.contract("C13")


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
