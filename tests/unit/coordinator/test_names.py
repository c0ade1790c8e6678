"""Coordinators that were given the same name on one journal (C18, F5)."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, suppress

import pytest

from coordinator.journal.journal import Holder, NameTaken
from coordinator.journal.memory import MemoryJournal
from coordinator.runs.leases import Times
from coordinator.runs.name import take_name
from fanfold.errors import FailedPrecondition, FanfoldError
from fanfold.model.run import RunEnded, RunState
from fanfold.schema import SchemaValidator
from support.durable import World, events_of, opening, specs

TIMES = Times(lease=1.0, renewal=0.2, claim=0.1, margin=0.3)
FOR_EVER = Times(lease=3_600.0, renewal=0.2, claim=0.1)
"""Of one that keeps its name also on a machine that stands still for a while."""
FORMER = Holder(name="c1", address="former:1", life="former")
NEXT = Holder(name="c1", address="next:1", life="next")


@pytest.mark.contract("C18", "F5")
async def test_a_coordinator_whose_namesake_is_alive_is_refused_and_told_where_that_is() -> None:
    journal = MemoryJournal()
    async with SchemaValidator() as validator, AsyncExitStack() as stack, asyncio.timeout(20):
        world = World(validator, stack)
        await world.coordinator("c1", times=FOR_EVER)
        with pytest.raises(FailedPrecondition, match="name: the coordinator at c1 is called 'c1' too"):
            await world.coordinator("c1", times=FOR_EVER, address="elsewhere")
        await world.coordinator("c2")
        assert await journal.take_name(NEXT, 1.0) is None, "names are a journal's own"


@pytest.mark.contract("C19", "F5")
async def test_a_coordinator_that_was_killed_has_its_name_elsewhere_once_its_lease_is_over() -> None:
    journal = MemoryJournal()
    assert await journal.take_name(FORMER, 0.5) is None
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(20):
        await take_name(journal, NEXT, FOR_EVER)
    assert asyncio.get_running_loop().time() - began > 0.4
    with pytest.raises(NameTaken, match="next:1"):
        await journal.renew(FORMER, 1.0)


@pytest.mark.contract("C18", "F5")
async def test_a_coordinator_that_is_started_again_has_its_name_at_once_and_the_former_stops_if_it_lives() -> None:
    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012 - what it raises ends the whole block
        async with SchemaValidator() as validator, AsyncExitStack() as stack, asyncio.timeout(20):
            world = World(validator, stack)
            await world.coordinator("c1", times=FOR_EVER, address="here:1")
            await take_name(world.shared, Holder(name="c1", address="here:1", life="next"), FOR_EVER)
            await asyncio.Event().wait()
    assert raised.group_contains(NameTaken)


@pytest.mark.contract("C43")
async def test_the_next_life_of_a_coordinator_that_has_stopped_has_its_name_at_once() -> None:
    async with SchemaValidator() as validator, AsyncExitStack() as stack:
        world = World(validator, stack)
        first = await world.coordinator("c1", times=FOR_EVER)
        await first.runs.holding.hand_over()
        assert await world.shared.take_name(NEXT, 1.0) is None


@pytest.mark.contract("C43")
async def test_a_coordinator_that_has_stopped_does_not_take_its_name_again() -> None:
    async with SchemaValidator() as validator, AsyncExitStack() as stack, asyncio.timeout(20):
        runs = (await World(validator, stack).coordinator("c1", times=FOR_EVER)).runs
        await runs.holding.hand_over()
        await runs.holding.keep(runs.resume)  # has nothing to keep any more
        assert await runs.journal.take_name(NEXT, 1.0) is None


@pytest.mark.contract("C18", "C19", "F5")
async def test_a_coordinator_whose_name_was_taken_while_it_was_cut_off_stops_and_leaves_its_runs() -> None:
    asked, steps = opening("q"), specs("slow", agent="wait")
    async with SchemaValidator() as validator, AsyncExitStack() as others, asyncio.timeout(20):
        second = World(validator, others)
        with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012 - what it raises ends the whole block
            async with AsyncExitStack() as stack:
                first = World(validator, stack)
                second.shared, second.agents = first.shared, first.agents
                cut_off = await first.coordinator("c1", times=TIMES)
                call = asyncio.create_task(events_of(cut_off, asked, steps))
                while not first.agents.calls:
                    await asyncio.sleep(0.01)
                cut_off.journal.is_cut = True
                twin = await second.coordinator("c1", times=FOR_EVER, address="elsewhere")
                cut_off.journal.is_cut = False
                await asyncio.Event().wait()
        assert raised.group_contains(NameTaken)
        assert len(cut_off.runs.holding) == 0
        with suppress(FanfoldError):
            await call
        second.agents.gate.set()
        *_, ended = await events_of(twin, asked, steps)
    assert isinstance(ended, RunEnded)
    assert ended.run.state is RunState.COMPLETED
    assert cut_off.runs.holding.counts.journal.changes == Counter({("accepted",): 1, ("lost",): 1})
