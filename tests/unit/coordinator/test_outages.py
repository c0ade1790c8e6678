"""Runs whose journal is away for longer than their leases last: they pause, and go on where they were (C17, F5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from coordinator.journal.journal import JournalFailed
from coordinator.runs.leases import Times
from fanfold.errors import Aborted, Unavailable
from fanfold.model.run import EventDetail, RunEvent, RunState
from fanfold.schema import SchemaValidator
from support.durable import DEADLINE, Coordinator, World, decoded, end_of, opening, outputs, read_into, specs
from support.mesh import until

TIMES = Times(lease=2.0, renewal=0.2, claim=0.1, margin=0.5, outage=DEADLINE)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        validator = await stack.enter_async_context(SchemaValidator())
        async with asyncio.timeout(2 * DEADLINE):
            yield World(validator, stack)


def cut(*coordinators: Coordinator, off: bool) -> None:
    for coordinator in coordinators:
        coordinator.journal.is_cut = off


async def until_pausing(coordinator: Coordinator) -> None:
    [run] = coordinator.runs.holding
    await until(lambda: not coordinator.runs.holding.may_write(run.scope.run_id), "its lease may be over")


@pytest.mark.contract("C17", "C18", "C42", "F5")
async def test_a_run_pauses_while_its_journal_is_away_and_its_caller_reads_on_when_it_is_back(world: World) -> None:
    one, two = [await world.coordinator(name, times=TIMES) for name in ("one", "two")]
    steps = [*specs("a", "b", "c", "d", agent="wait"), *specs(*"abcde")[4:]]
    told: list[RunEvent] = []
    async with one.runs.parallel(opening("r1", detail=EventDetail.LIFECYCLE), steps) as source:
        await until(lambda: len(world.agents.calls) == 4, "as many steps run as may at once")
        [run] = one.runs.holding
        cut(one, two, off=True)
        await until_pausing(one)
        world.agents.gate.set()
        await asyncio.sleep(2 * TIMES.lease)  # the outage
        assert world.agents.calls["e"] == 0, "a step was begun that may be another coordinator's"
        assert run.view().waiting_on == "the journal, which cannot be written"
        cut(one, two, off=False)
        await read_into(told, source)
    assert outputs(told) == {number: f"did {prompt}" for number, prompt in enumerate("abcde")}
    assert [event.sequence for event in told] == list(range(1, len(told) + 1))
    assert set(world.agents.calls.values()) == {1}
    kept = await world.shared.find(end_of(told).run.run_id)
    assert kept is not None
    assert (kept.epoch, kept.run.coordinator, kept.run.state) == (1, "one", RunState.COMPLETED)


@pytest.mark.contract("C18", "C19", "F5")
async def test_a_paused_run_that_somebody_has_taken_over_is_left_when_the_journal_says_so(world: World) -> None:
    one, two = [await world.coordinator(name, times=TIMES) for name in ("one", "two")]
    told: list[RunEvent] = []
    async with one.runs.parallel(opening("r1"), specs("a", agent="wait")) as source:
        told += decoded(await source.read())
        await until(lambda: bool(world.agents.calls), "the step runs")
        cut(one, off=True)
        await until(lambda: bool([*two.runs.holding]), "the other has it")
        assert [*one.runs.holding], "the first cannot know that yet"
        cut(one, off=False)
        with pytest.raises(Unavailable, match="moved to another coordinator"):
            await read_into(told, source)
    await until(lambda: not [*one.runs.holding], "nothing of it is left there")
    world.agents.gate.set()
    async with two.runs.parallel(
        opening("r1", from_sequence=told[-1].sequence + 1), specs("a", agent="wait")
    ) as source:
        await read_into(told, source)
    assert outputs(told) == {0: "did a"}
    assert end_of(told).run.state is RunState.COMPLETED


@pytest.mark.contract("C42", "F5")
async def test_a_journal_that_does_not_come_back_is_not_waited_for_for_ever(world: World) -> None:
    one = await world.coordinator("one", times=replace(TIMES, outage=0.5))
    async with one.runs.parallel(opening("r1"), specs("a", agent="wait")) as source:
        await until(lambda: bool(world.agents.calls), "the step runs")
        cut(one, off=True)
        with pytest.raises((JournalFailed, Aborted, Unavailable)):
            await read_into([], source)
    await until(lambda: not [*one.runs.holding], "it is left to others")


@pytest.mark.contract("C17", "C19")
async def test_a_run_begins_with_its_records_however_long_they_cannot_be_read(world: World) -> None:
    one = await world.coordinator("one", times=TIMES)
    one.journal.refuses = "records"
    told: list[RunEvent] = []
    async with one.runs.parallel(opening("r1"), specs("a")) as source:
        await asyncio.sleep(0.5)
        assert not world.agents.calls, "it was begun without its records"
        one.journal.refuses = ""
        await read_into(told, source)
    assert outputs(told) == {0: "did a"}


@pytest.mark.contract("C17", "C19")
async def test_a_node_gets_its_first_step_of_a_run_once_the_journal_knows_of_it(world: World) -> None:
    one = await world.coordinator("one", times=TIMES)
    one.journal.refuses = "use_node"
    told: list[RunEvent] = []
    async with one.runs.parallel(opening("r1"), specs("a", agent="wait")) as source:
        [run] = one.runs.holding
        asking = asyncio.ensure_future(run.scope.use_node("node-1"))  # as the mesh does before it sends a step
        await asyncio.sleep(0.5)
        assert not asking.done()
        one.journal.refuses = ""
        await asking
        kept = await world.shared.find(run.scope.run_id)
        assert kept is not None
        assert kept.nodes == ("node-1",)
        world.agents.gate.set()
        await read_into(told, source)
    assert outputs(told) == {0: "did a"}


@pytest.mark.contract("C28", "F22")
async def test_a_reader_that_is_behind_waits_for_a_journal_that_is_away(world: World) -> None:
    one = await world.coordinator("one", times=TIMES)
    async with one.runs.parallel(opening("r1"), specs("a", agent="wait")) as source:
        first = decoded(await source.read())
        [run] = one.runs.holding
        run.log._tail.clear()  # as what is no longer in memory
        run.log._tail_first += len(first)
        one.journal.refuses = "entries"
        late = asyncio.ensure_future(run.reader(1, EventDetail.LIFECYCLE).read())
        await asyncio.sleep(0.5)
        assert not late.done()
        one.journal.refuses = ""
        assert decoded(await late)[0] == first[0]
        world.agents.gate.set()
        await read_into(first, source)
