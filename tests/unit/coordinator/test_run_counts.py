"""How a coordinator counts journaled runs that come, go and end, and what it writes of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from coordinator.counts import Counts
from coordinator.waiting import WaitsOn
from fanfold.errors import Aborted, Unavailable
from fanfold.model.run import EventDetail, RunEvent
from fanfold.schema import SchemaValidator
from support.durable import Coordinator, World, decoded, end_of, events_of, opening, outputs, read_into, specs
from support.mesh import until

STEPS: Any = [*specs("a", "b"), *specs("x", "y", "c", agent="wait")[2:]]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield World(await stack.enter_async_context(SchemaValidator()), stack)


def counts_of(coordinator: Coordinator) -> Counts:
    return coordinator.runs.holding.counts


@pytest.mark.contract("C16")
async def test_a_run_that_ends_here_is_counted_with_its_appends(world: World) -> None:
    one = await world.coordinator("one")
    world.agents.failing.add("b")
    told = await events_of(one, opening("r1", detail=EventDetail.LIFECYCLE), specs("a", "b"))
    await until(lambda: not [*one.runs.holding], "nothing of it is left")
    counts = counts_of(one)
    assert counts.runs.ended == {("parallel", "completed"): 1}
    assert sum(counts.runs.seconds["parallel",].counts) == 1
    assert counts.journal.append_events.total == end_of(told).sequence
    assert sum(counts.journal.append_seconds.counts) == sum(counts.journal.append_events.counts) > 0
    assert counts.journal.failures == 0
    assert counts.journal.changes == {("accepted",): 1}
    await until(lambda: sum(counts.journal.renewal_seconds.counts) > 0, "leases are renewed")


@pytest.mark.contract("C17", "C19", "F5")
async def test_a_run_that_is_lost_to_another_coordinator_ends_there_only(world: World) -> None:
    one, two = await world.coordinator("one"), await world.coordinator("two")
    asked, seen = opening("r1", detail=EventDetail.LIFECYCLE), list[RunEvent]()
    async with one.runs.parallel(asked, STEPS) as source:
        while len(outputs(seen)) < 2:
            seen += decoded(await source.read())
        one.journal.is_cut = True
        with pytest.raises((Aborted, Unavailable)):
            await read_into(seen, source)
    await until(lambda: not [*one.runs.holding], "nothing of it is left there")
    await until(lambda: bool([*two.runs.holding]), "the other has it")
    world.agents.gate.set()
    await events_of(two, asked, STEPS)
    await until(lambda: not [*two.runs.holding], "it has ended there")
    assert counts_of(one).journal.changes == {("accepted",): 1, ("lost",): 1}
    assert counts_of(one).journal.failures > 0
    assert not counts_of(one).runs.ended
    assert counts_of(two).journal.changes == {("taken_over",): 1}
    assert counts_of(two).runs.ended == {("parallel", "completed"): 1}


@pytest.mark.contract("C43")
async def test_a_run_that_is_handed_over_is_told_from_one_that_is_lost(world: World) -> None:
    one, two = await world.coordinator("one"), await world.coordinator("two")
    async with one.runs.parallel(opening("r1"), specs("a", agent="wait")) as source:
        await until(lambda: world.agents.calls["a"] > 0, "the step runs")
        await one.runs.holding.hand_over()
        with pytest.raises(Unavailable):
            await read_into([], source)
    await until(lambda: bool([*two.runs.holding]), "the other has it")
    assert counts_of(one).journal.changes == {("accepted",): 1, ("handed_over",): 1}
    assert counts_of(two).journal.changes == {("taken_over",): 1}
    world.agents.gate.set()


@pytest.mark.contract("C17", "C42")
async def test_a_journal_that_cannot_be_written_is_what_a_run_waits_on_since_then(world: World) -> None:
    one = await world.coordinator("one")
    async with one.runs.parallel(opening("r1"), specs("a", agent="wait")):
        await until(lambda: world.agents.calls["a"] > 0, "the step runs")
        (run,) = one.runs.holding
        one.journal.refuses = "append"
        world.agents.gate.set()
        await until(lambda: run.standstill is not None, "the run stands still")
        assert run.standstill is not None
        assert run.standstill.on is WaitsOn.JOURNAL
        since = run.standstill.since
        failures = counts_of(one).journal.failures
        await until(lambda: counts_of(one).journal.failures > failures, "it is tried again")
        assert run.standstill is not None
        assert run.standstill.since == since
        one.journal.refuses = ""
        await until(lambda: run.standstill is None, "it goes on")
