"""Budgets of journaled runs: what was spent is kept, taken over, and gone on with (C13, C16, C19)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from coordinator.journal.journal import JournalFailed
from fanfold.errors import Aborted, Unavailable
from fanfold.model.run import Budget, BudgetExhausted, EventDetail, RunEvent, RunStepEvent
from fanfold.model.step import AgentStepSpec, FailureCode, StepEnded, StepOutcome, StepPolicy
from fanfold.schema import SchemaValidator
from support.durable import DEADLINE, World, decoded, end_of, events_of, opening, read_into, specs, started
from support.mesh import until

pytestmark = pytest.mark.contract("C13")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        validator = await stack.enter_async_context(SchemaValidator())
        async with asyncio.timeout(DEADLINE):
            yield World(validator, stack)


def spenders(*prompts: str, max_tokens: int | None = None) -> list[AgentStepSpec]:
    policy = StepPolicy(max_tokens=max_tokens)
    return [
        AgentStepSpec(task_id=f"t{n}", agent="spend", description="d", prompt=prompt, policy=policy)
        for n, prompt in enumerate(prompts)
    ]


def outcomes(told: list[RunEvent]) -> dict[int, StepOutcome]:
    return {e.index: e.event.outcome for e in told if isinstance(e, RunStepEvent) and isinstance(e.event, StepEnded)}


def refused(told: list[RunEvent]) -> list[int]:
    exhausted = FailureCode.BUDGET_EXHAUSTED
    return sorted(n for n, each in outcomes(told).items() if each.failure and each.failure.code is exhausted)


async def kept_budget(world: World) -> Budget | None:
    kept = await world.shared.find_workflow("alice", "audit")
    return kept.run.budget if kept else None


async def test_spending_is_told_with_the_events_and_kept_with_the_run(world: World) -> None:
    one = await world.coordinator("one")
    told = await events_of(one, opening("r1", budget_tokens=100), spenders("30", "20", "10 fail", max_tokens=30))
    assert end_of(told).run.budget == await kept_budget(world) == Budget(limit=100, spent=60)
    spent = [event.budget_spent or 0 for event in told if isinstance(event, RunStepEvent)]
    assert spent == sorted(spent)
    assert spent[-1] == 60


@pytest.mark.contract("C19")
async def test_a_coordinator_that_takes_over_goes_on_with_what_is_left(world: World) -> None:
    one, two = await world.coordinator("one"), await world.coordinator("two")
    steps = spenders("20", "5 wait", "30", "40", max_tokens=40)
    asked = opening("r1", budget_tokens=100, detail=EventDetail.LIFECYCLE)
    seen: list[RunEvent] = []
    async with one.runs.parallel(asked, steps) as source:
        # 40 each: two at once. The first one leaves 80, of which the second one has 40 and the third one takes 40.
        while len(outcomes(seen)) < 2:
            seen += decoded(await source.read())
        assert refused(seen) == []
        one.journal.is_cut = True
        with pytest.raises((JournalFailed, Aborted, Unavailable)):
            await read_into(seen, source)
    kept = await kept_budget(world)
    assert kept is not None
    assert kept.spent == sum(each.usage.tokens for each in outcomes(seen).values()) == 50
    await until(lambda: bool([*two.runs.holding]), "the other has it")
    world.agents.gate.set()
    again = opening("r1", budget_tokens=100, detail=EventDetail.LIFECYCLE, from_sequence=seen[-1].sequence + 1)
    told = seen + await events_of(two, again, steps)
    # What the second step had is unknown, so all 40 of it are charged; there is no room for it, nor for the last one.
    assert refused(told) == [1, 3]
    assert end_of(told).run.budget == await kept_budget(world) == Budget(limit=100, spent=90, refused_steps=2)
    exhausted = [event for event in told if isinstance(event, BudgetExhausted)]
    assert len(exhausted) == 1


@pytest.mark.contract("C19", "F10")
async def test_what_is_lost_is_charged_before_anything_more_is_set_aside(world: World) -> None:
    one, two = await world.coordinator("one"), await world.coordinator("two")
    steps = spenders("30 wait 10", "6 wait", max_tokens=40)
    asked = opening("r1", budget_tokens=100, detail=EventDetail.LIFECYCLE)
    seen: list[RunEvent] = []
    async with one.runs.parallel(asked, steps) as source:
        while len(started(seen)) < 2:
            seen += decoded(await source.read())
        one.journal.is_cut = True
        with pytest.raises((JournalFailed, Aborted, Unavailable)):
            await read_into(seen, source)
    await until(lambda: bool([*two.runs.holding]), "the other has it")
    world.agents.gate.set()
    again = opening("r1", budget_tokens=100, detail=EventDetail.LIFECYCLE, from_sequence=seen[-1].sequence + 1)
    told = seen + await events_of(two, again, steps)
    # With the first one begun again before the second one's 40 are charged, 120 could be spent.
    assert refused(told) == [0, 1]
    assert end_of(told).run.budget == Budget(limit=100, spent=80, refused_steps=2)


@pytest.mark.contract("C19", "C43")
async def test_what_is_stopped_as_its_run_is_handed_over_is_charged_once(world: World) -> None:
    one, two = await world.coordinator("one"), await world.coordinator("two")
    steps = spenders("5 wait", max_tokens=40)
    asked = opening("r1", budget_tokens=200, detail=EventDetail.LIFECYCLE)
    seen: list[RunEvent] = []
    async with one.runs.parallel(asked, steps) as source:
        while not started(seen):
            seen += decoded(await source.read())
        await one.runs.holding.hand_over()
        with pytest.raises(Unavailable):
            await read_into(seen, source)
    await until(lambda: bool([*two.runs.holding]), "the other has it")
    world.agents.gate.set()
    again = opening("r1", budget_tokens=200, detail=EventDetail.LIFECYCLE, from_sequence=seen[-1].sequence + 1)
    told = await events_of(two, again, steps)
    assert end_of(told).run.budget == Budget(limit=200, spent=45), "40 of which nobody knows, and 5"


@pytest.mark.contract("C19")
async def test_exhaustion_is_told_once_whoever_holds_the_run(world: World) -> None:
    one, two = await world.coordinator("one"), await world.coordinator("two")
    # Two are refused at once, four wait, and the last one's turn comes only after them.
    steps = spenders(*["10"] * 7, max_tokens=60)
    steps[2:6] = specs(*"uvwxyz", agent="wait")[2:]
    asked = opening("r1", budget_tokens=15, detail=EventDetail.LIFECYCLE)
    seen: list[RunEvent] = []
    async with one.runs.parallel(asked, steps) as source:
        while len(refused(seen)) < 2:
            seen += decoded(await source.read())
        one.journal.is_cut = True
        with pytest.raises((JournalFailed, Aborted, Unavailable)):
            await read_into(seen, source)
    await until(lambda: bool([*two.runs.holding]), "the other has it")
    world.agents.gate.set()
    again = opening("r1", budget_tokens=15, detail=EventDetail.LIFECYCLE, from_sequence=seen[-1].sequence + 1)
    told = seen + await events_of(two, again, steps)
    assert {0, 1, 6} <= set(refused(told))
    assert [type(event) for event in told].count(BudgetExhausted) == 1


@pytest.mark.contract("C16")
async def test_a_resumed_workflow_goes_on_with_what_it_has_spent_and_a_done_one_starts_afresh(world: World) -> None:
    one = await world.coordinator("one")
    first = await events_of(one, opening("r1", budget_tokens=100), spenders("40", "30 fail", max_tokens=50))
    assert end_of(first).run.budget == Budget(limit=100, spent=70)
    second = await events_of(one, opening("r2", budget_tokens=100), spenders("40", "20", max_tokens=50))
    assert refused(second) == [1], "50 do not fit into the 30 that are left"
    assert world.agents.calls["40"] == 1, "what is recorded costs nothing again"
    assert end_of(second).run.budget == Budget(limit=100, spent=70, refused_steps=1)
    third = await events_of(one, opening("r3", budget_tokens=200), spenders("40", "20", max_tokens=50))
    assert end_of(third).run.budget == Budget(limit=200, spent=90)
    assert refused(third) == []
    fourth = await events_of(one, opening("r4", budget_tokens=200), spenders("40", "20", max_tokens=50))
    assert end_of(fourth).run.budget == Budget(limit=200, spent=60)
