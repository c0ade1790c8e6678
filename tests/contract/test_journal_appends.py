"""What is appended to a run in every journal, by its holder and nobody else (C16, C18)."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress

import pytest

from coordinator.journal.journal import Fenced, Journal
from fanfold.errors import InternalError
from fanfold.model.run import Budget, RunState, StepCounts
from support.journals import (
    ALICE,
    ENDS,
    HERE,
    LONG,
    OVER,
    THERE,
    all_entries,
    append,
    ending,
    events,
    found,
    new_run,
    record,
)


@pytest.mark.contract("C16", "F6")
async def test_what_was_appended_is_there(journal: Journal) -> None:
    await journal.accept(new_run("r", workflow_id="w"), HERE, LONG)
    steps, budget = StepCounts(total=10, running=2, succeeded=1, failed=1), Budget(limit=100, spent=7, refused_steps=1)
    await journal.append(append("r", events(1, 3), records=[record("a")], steps=steps, budget=budget, waiting_on="x"))
    kept = await found(journal, "r")
    assert (kept.run.state, kept.run.steps, kept.run.budget) == (RunState.RUNNING, steps, budget)
    assert (kept.run.waiting_on, kept.last_sequence, kept.run.ended_at) == ("x", 3, None)
    assert list(await journal.entries("r", 1)) == events(1, 3)
    assert list(await journal.records(ALICE, "w")) == [record("a")]


async def test_an_append_without_a_budget_leaves_what_is_kept_of_it(journal: Journal) -> None:
    await journal.accept(new_run("r"), HERE, LONG)
    await journal.append(append("r", budget=Budget(limit=100, spent=7)))
    await journal.append(append("r", events(1, 1)))
    assert (await found(journal, "r")).run.budget == Budget(limit=100, spent=7)


@pytest.mark.contract("F5")
@pytest.mark.parametrize("state", ENDS)
async def test_a_run_that_has_ended_is_nobodys_and_takes_nothing_more(journal: Journal, state: RunState) -> None:
    await journal.accept(new_run("r", workflow_id="w"), HERE, LONG)
    await journal.append(ending("r", entries=events(1, 1), state=state, reason="that is why"))
    kept = await journal.find("r")
    assert kept is not None
    assert (kept.run.state, kept.run.reason, kept.run.coordinator) == (state, "that is why", "here")
    assert (kept.holder.name, kept.lease_left) == ("", 0.0)
    assert kept.run.ended_at is not None
    assert kept.run.created_at is not None
    assert kept.run.created_at <= kept.run.ended_at
    for late in (append("r", events(2, 1)), append("r", records=[record("a")]), ending("r")):
        with pytest.raises(Fenced):
            await journal.append(late)
    with pytest.raises(Fenced):
        await journal.use_node("r", 1, "node-1")
    await journal.ask_to_cancel("r", "too late")
    await journal.let_go("r", 1)
    assert list(await journal.renew(HERE, LONG)) == []
    assert list(await journal.claim(THERE, LONG)) == []
    assert await journal.find("r") == kept
    assert list(await journal.entries("r", 1)) == events(1, 1)
    assert list(await journal.records(ALICE, "w")) == []


async def test_the_first_end_of_a_lease_is_told_as_long_as_there_is_one(journal: Journal) -> None:
    assert await journal.until_end_of_leases() == math.inf
    await journal.accept(new_run("over"), HERE, OVER)
    assert await journal.until_end_of_leases() == math.inf
    await journal.accept(new_run("long"), HERE, LONG)
    await journal.accept(new_run("longer"), THERE, 2 * LONG)
    assert 0 < await journal.until_end_of_leases() <= LONG
    await journal.let_go("long", 1)
    assert LONG < await journal.until_end_of_leases() <= 2 * LONG
    await journal.append(ending("longer"))
    assert await journal.until_end_of_leases() == math.inf


@pytest.mark.contract("C18", "F5")
async def test_a_holder_whose_run_was_claimed_is_fenced_and_leaves_nothing(journal: Journal) -> None:
    await journal.accept(new_run("r", workflow_id="w"), HERE, OVER)
    await journal.append(append("r", events(1, 1)))
    (claimed,) = await journal.claim(THERE, LONG)
    before = await found(journal, "r")
    for epoch in (claimed.epoch - 1, claimed.epoch + 1):
        with pytest.raises(Fenced):
            await journal.append(append("r", events(2, 1), epoch=epoch, records=[record("a")], waiting_on="x"))
        with pytest.raises(Fenced):
            await journal.append(ending("r", epoch=epoch, forget_records=True))
        with pytest.raises(Fenced):
            await journal.use_node("r", epoch, "node-1")
        await journal.let_go("r", epoch)
    assert await found(journal, "r") == before
    assert list(await journal.entries("r", 1)) == events(1, 1)
    assert list(await journal.records(ALICE, "w")) == []
    await journal.append(append("r", events(2, 1), epoch=claimed.epoch))


async def test_a_run_that_is_not_kept_takes_nothing(journal: Journal) -> None:
    with pytest.raises(Fenced):
        await journal.append(append("r", events(1, 1)))
    with pytest.raises(Fenced):
        await journal.use_node("r", 1, "node-1")
    await journal.let_go("r", 1)
    await journal.ask_to_cancel("r", "why")
    assert await journal.find("r") is None


@pytest.mark.contract("C28")
@pytest.mark.parametrize("first", [2, 3, 5])
async def test_events_that_do_not_follow_the_last_one_are_refused(journal: Journal, first: int) -> None:
    await journal.accept(new_run("r", workflow_id="w"), HERE, LONG)
    await journal.append(append("r", events(1, 3)))
    before = await found(journal, "r")
    with pytest.raises(InternalError, match="r"):
        await journal.append(append("r", events(first, 3), records=[record("a")], waiting_on="x"))
    assert await found(journal, "r") == before
    assert list(await journal.entries("r", 1)) == events(1, 3)
    assert list(await journal.records(ALICE, "w")) == []


async def test_records_of_a_run_without_a_workflow_are_refused(journal: Journal) -> None:
    await journal.accept(new_run("r"), HERE, LONG)
    with pytest.raises(InternalError, match="workflow"):
        await journal.append(append("r", events(1, 1), records=[record("a")]))
    assert list(await journal.entries("r", 1)) == []
    assert list(await journal.records(ALICE, "")) == []


async def test_an_append_that_is_repeated_is_kept_once(journal: Journal) -> None:
    await journal.accept(new_run("r"), HERE, LONG)
    await journal.append(append("r", events(1, 2), waiting_on="first"))
    await journal.append(append("r", events(3, 2), waiting_on="second"))
    await journal.append(append("r", events(3, 2), waiting_on="second"))
    await journal.append(append("r", events(1, 2), waiting_on="first"))
    assert (await found(journal, "r")).run.waiting_on == "second"
    final = ending("r", entries=events(5, 1))
    await journal.append(final)
    ended = await found(journal, "r")
    await journal.append(final)
    assert await found(journal, "r") == ended
    assert list(await journal.entries("r", 1)) == events(1, 5)


@pytest.mark.contract("F5")
async def test_a_repeated_append_of_a_former_holder_is_fenced(journal: Journal) -> None:
    await journal.accept(new_run("r"), HERE, OVER)
    await journal.append(append("r", events(1, 2)))
    await journal.claim(THERE, LONG)
    with pytest.raises(Fenced):
        await journal.append(append("r", events(1, 2)))


@pytest.mark.contract("C28")
async def test_events_are_read_from_any_number_in_pages(journal: Journal) -> None:
    kept = []
    await journal.accept(new_run("r"), HERE, LONG)
    for first, count in ((1, 1), (2, 20), (22, 3), (25, 300)):
        await journal.append(append("r", events(first, count)))
        kept += events(first, count)
    for first in (1, 2, 3, 21, 22, 24, 25, 200, 324):
        assert list(await journal.entries("r", first)) == kept[first - 1 :]
    assert list(await journal.entries("r", 0)) == kept
    assert list(await journal.entries("r", 325)) == []
    assert await all_entries(journal, "r", max_bytes=100) == kept
    page = await journal.entries("r", 3, max_bytes=100)
    assert list(page) == kept[2 : 2 + len(page)]
    assert 80 < sum(len(entry.data) for entry in page) <= 100
    assert list(await journal.entries("r", 3, max_bytes=1)) == kept[2:3]


@pytest.mark.contract("C28")
async def test_calls_at_the_same_time_take_effect_in_their_order_for_each_run(journal: Journal) -> None:
    names = [f"r{number}" for number in range(5)]
    for name in names:
        await journal.accept(new_run(name), HERE, LONG)
    sizes = [10, 100_000, 3, 300_000, 70_000, 1] * 5  # some take longer to be written than others
    calls = [
        journal.append(append(name, events(1 + position, 1, b"x" * size)))
        for position, size in enumerate(sizes)
        for name in names
    ]
    await asyncio.gather(*calls, *(journal.let_go(name, 1) for name in names))
    for name in names:
        kept = await all_entries(journal, name)
        assert [entry.sequence for entry in kept] == list(range(1, len(sizes) + 1))
        assert [len(entry.data) for entry in kept] == [size + len(f" {number}") for number, size in enumerate(sizes, 1)]
    assert len(await journal.claim(THERE, LONG)) == len(names)


async def test_a_cancelled_append_is_kept_whole_or_not_at_all(journal: Journal) -> None:
    await journal.accept(new_run("r", workflow_id="w"), HERE, LONG)
    for turn in range(30):
        first = (await found(journal, "r")).last_sequence + 1
        task = asyncio.create_task(
            journal.append(append("r", events(first, 4, b"x" * 100_000 * (turn % 2)), records=[record(str(first))]))
        )
        for _ in range(turn % 5):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await journal.ask_to_cancel("r", "anything that comes after it")
        last = (await found(journal, "r")).last_sequence
        assert last in {first - 1, first + 3}
    kept = await all_entries(journal, "r")
    assert [entry.sequence for entry in kept] == list(range(1, last + 1))
    assert {int(it.key) for it in await journal.records(ALICE, "w")} == set(range(1, last, 4))
    await journal.append(append("r", events(last + 1, 1)))
