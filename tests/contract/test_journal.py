"""What every journal promises: one suite, over every implementation of `Journal`."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coordinator.journal.journal import Claim, Fenced, Holder, Journal, KeptRun, NameTaken, Retention, RunFilter
from coordinator.journal.memory import MemoryJournal
from fanfold.errors import Aborted, InternalError
from fanfold.model.run import Budget, Run, RunKind, RunState, StepCounts
from support.journals import (
    ALICE,
    HERE,
    LONG,
    OVER,
    THERE,
    all_entries,
    append,
    ending,
    events,
    eventually,
    new_run,
    postgres_journal,
    record,
    sqlite_journal,
)
from support.postgres import Server

ENDS = [RunState.COMPLETED, RunState.CANCELLED, RunState.FAILED]
KEEP_ALL = Retention()


@pytest.fixture(params=["memory", "sqlite", "sqlite with all payloads in objects", "postgres"])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Journal]:
    if request.param == "memory":
        yield MemoryJournal()
        return
    if request.param == "postgres":
        server: Server = request.getfixturevalue("postgres")
        with server.database() as url:
            async with postgres_journal(url) as opened:
                yield opened
        return
    inline_bytes = 65_536 if request.param == "sqlite" else 0
    async with sqlite_journal(tmp_path, inline_bytes=inline_bytes) as opened:
        yield opened


async def found(journal: Journal, run_id: str) -> KeptRun:
    """The run, without what changes while time passes."""
    kept = await journal.find(run_id)
    assert kept is not None
    return replace(kept, lease_left=0.0)


# A new run.


async def test_an_accepted_run_is_held_from_epoch_1_for_its_lease(journal: Journal) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)  # what databases round to
    kept = await journal.accept(new_run("r", workflow_id="w"), HERE, 20.0)
    assert (kept.holder, kept.epoch, kept.run.state, kept.last_sequence) == (HERE, 1, RunState.PENDING, 0)
    assert kept.lease_left == pytest.approx(20.0, abs=5.0)
    assert kept.run.coordinator == "here"
    assert kept.run.created_at is not None
    assert before <= kept.run.created_at <= datetime.now(UTC) + timedelta(milliseconds=1)
    assert kept.held_since == kept.run.created_at
    assert await found(journal, "r") == replace(kept, lease_left=0.0)


@pytest.mark.contract("F6")
async def test_a_run_is_kept_with_all_that_was_said_of_it(journal: Journal) -> None:
    run = Run(
        run_id="r",
        kind=RunKind.SCRIPT,
        state=RunState.PENDING,
        workflow_id="w",
        owner="alice/session-7",
        attached=False,
        job_id="script-12",
        steps=StepCounts(total=9, running=1, succeeded=2, failed=3),
        budget=Budget(limit=2**40, spent=2**33, refused_steps=5),
        waiting_on="a node",
        reason="none yet",
    )
    new = new_run("r", run=run, request_id="q", request_digest="d", request=b"\0the request\xff")
    kept = await journal.accept(new, HERE, LONG)
    assert kept.run == replace(run, created_at=kept.run.created_at, coordinator="here")
    assert (kept.request_id, kept.request_digest) == ("q", "d")
    assert await journal.request("r") == b"\0the request\xff"


async def test_what_is_not_kept_is_not_found(journal: Journal) -> None:
    await journal.accept(new_run("r"), HERE, LONG)
    assert await journal.find("other") is None
    assert await journal.find_workflow(ALICE, "w") is None
    assert await journal.find_workflow(ALICE, "") is None
    assert await journal.find_request(ALICE, "q") is None
    assert await journal.find_request(ALICE, "") is None
    assert await journal.request("other") == b""
    assert list(await journal.entries("other", 1)) == []
    assert list(await journal.records(ALICE, "w")) == []


@pytest.mark.contract("C18", "C44")
async def test_a_known_request_gives_its_run_while_it_goes_on_and_after_it_completed(journal: Journal) -> None:
    first = await journal.accept(new_run("r1", request_id="q", workflow_id="w", request=b"first"), HERE, LONG)
    again = await journal.accept(new_run("r2", request_id="q", workflow_id="w", request=b"second"), THERE, LONG)
    assert replace(again, lease_left=0) == replace(first, lease_left=0)
    await journal.append(ending("r1"))
    late = await journal.accept(new_run("r3", request_id="q", workflow_id="w"), THERE, LONG)
    assert (late.run.run_id, late.run.state) == ("r1", RunState.COMPLETED)
    assert await journal.request("r1") == b"first"
    assert await journal.find("r2") is None
    assert await journal.find("r3") is None


@pytest.mark.contract("C33")
async def test_request_and_workflow_ids_of_others_are_other_ids(journal: Journal) -> None:
    await journal.accept(new_run("r1", request_id="q", workflow_id="w"), HERE, LONG)
    theirs = await journal.accept(new_run("r2", owner="bob", request_id="q", workflow_id="w"), HERE, LONG)
    assert theirs.run.run_id == "r2"
    mine = await journal.find_request(ALICE, "q"), await journal.find_workflow(ALICE, "w")
    assert [kept.run.run_id for kept in mine if kept] == ["r1", "r1"]


@pytest.mark.contract("C18")
@pytest.mark.parametrize("state", [RunState.CANCELLED, RunState.FAILED])
async def test_the_request_id_of_a_run_that_did_not_complete_becomes_the_next_ones(
    journal: Journal, state: RunState
) -> None:
    await journal.accept(new_run("r1", request_id="q"), HERE, LONG)
    await journal.append(ending("r1", state=state))
    second = await journal.accept(new_run("r2", request_id="q"), HERE, LONG)
    assert second.run.run_id == "r2"
    of_request = await journal.find_request(ALICE, "q")
    assert of_request is not None
    assert of_request.run.run_id == "r2"
    assert (await found(journal, "r1")).request_id == ""


async def test_runs_without_request_ids_have_nothing_to_do_with_one_another(journal: Journal) -> None:
    assert [(await journal.accept(new_run(name), HERE, LONG)).run.run_id for name in ("r1", "r2")] == ["r1", "r2"]


@pytest.mark.contract("C18")
@pytest.mark.parametrize("how", ["held", "lease over", "let go", "claimed"])
async def test_a_workflow_whose_run_has_not_ended_is_refused_and_since_when_it_is_held_is_told(
    journal: Journal, how: str
) -> None:
    await journal.accept(new_run("r0", request_id="q", workflow_id="other"), HERE, LONG)
    await journal.append(ending("r0", state=RunState.FAILED))
    await journal.accept(new_run("r1", workflow_id="w"), HERE, OVER if how == "lease over" else LONG)
    if how in {"let go", "claimed"}:
        await journal.let_go("r1", 1)
    if how == "claimed":
        await journal.claim(THERE, LONG)
    held_since = (await found(journal, "r1")).held_since
    with pytest.raises(Aborted, match="w") as refused:
        await journal.accept(new_run("r2", request_id="q", workflow_id="w"), HERE, LONG)
    assert refused.value.reason == "WORKFLOW_HELD"
    assert f"{held_since:%Y-%m-%d %H:%M:%S}" in refused.value.message
    assert await journal.find("r2") is None
    assert (await found(journal, "r0")).request_id == "q"


@pytest.mark.contract("C18")
@pytest.mark.parametrize("state", ENDS)
async def test_a_workflow_whose_run_has_ended_starts_afresh(journal: Journal, state: RunState) -> None:
    await journal.accept(new_run("r1", workflow_id="w"), HERE, LONG)
    await journal.append(ending("r1", state=state))
    await journal.accept(new_run("r2", workflow_id="w"), THERE, LONG)
    latest = await journal.find_workflow(ALICE, "w")
    assert latest is not None
    assert latest.run.run_id == "r2"


async def test_a_run_that_is_accepted_again_is_given_as_it_is(journal: Journal) -> None:
    await journal.accept(new_run("r", workflow_id="w"), HERE, LONG)
    await journal.append(append("r", events(1, 2)))
    again = await journal.accept(new_run("r", workflow_id="w"), THERE, LONG)
    assert replace(again, lease_left=0.0) == await found(journal, "r")
    assert (again.holder, again.last_sequence) == (HERE, 2)


# Appending.


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


# Records.


@pytest.mark.contract("C16")
async def test_of_records_with_one_key_the_last_one_holds(journal: Journal) -> None:
    await journal.accept(new_run("r1", workflow_id="w"), HERE, LONG)
    await journal.append(append("r1", records=[record("a"), record("b", b"1"), record("b", b"2")]))
    await journal.append(append("r1", records=[record("c"), record("a", b"3", "g" * 64)]))
    await journal.append(ending("r1", state=RunState.CANCELLED))
    await journal.accept(new_run("r2", workflow_id="w"), HERE, LONG)
    await journal.append(append("r2", records=[record("d"), record("b", b"4")]))
    kept = {it.key: it for it in await journal.records(ALICE, "w")}
    assert kept == {
        "a": record("a", b"3", "g" * 64),
        "b": record("b", b"4"),
        "c": record("c"),
        "d": record("d"),
    }
    assert list(await journal.records(ALICE, "other")) == []
    assert list(await journal.records("bob", "w")) == []


@pytest.mark.contract("C16")
async def test_records_are_forgotten_with_the_end_that_says_so_and_no_others(journal: Journal) -> None:
    for name in ("r1", "r2", "r3"):
        await journal.accept(new_run(name, workflow_id=name), HERE, LONG)
        await journal.append(append(name, records=[record("a")]))
    await journal.append(ending("r1", records=[record("b")], forget_records=True))
    await journal.append(ending("r2", records=[record("b")]))
    assert list(await journal.records(ALICE, "r1")) == []
    assert {it.key for it in await journal.records(ALICE, "r2")} == {"a", "b"}
    assert {it.key for it in await journal.records(ALICE, "r3")} == {"a"}


@pytest.mark.contract("C7", "C19")
async def test_records_that_are_put_replace_those_that_were_there(journal: Journal) -> None:
    await journal.put_records(ALICE, "w", [record("a"), record("b", b"b")])
    await journal.put_records("bob", "w", [record("other")])
    assert {it.key: it.data for it in await journal.records(ALICE, "w")} == {"a": b"outcome", "b": b"b"}
    await journal.put_records(ALICE, "w", [record("c")])
    assert list(await journal.records(ALICE, "w")) == [record("c")]
    await journal.put_records(ALICE, "w", [])
    assert list(await journal.records(ALICE, "w")) == []
    assert list(await journal.records("bob", "w")) == [record("other")]


@pytest.mark.contract("C18")
async def test_records_are_not_put_under_a_run_that_has_not_ended(journal: Journal) -> None:
    await journal.accept(new_run("r", workflow_id="w"), HERE, OVER)
    await journal.append(append("r", records=[record("a")]))
    with pytest.raises(Aborted) as refused:
        await journal.put_records(ALICE, "w", [record("b")])
    assert refused.value.reason == "WORKFLOW_HELD"
    assert list(await journal.records(ALICE, "w")) == [record("a")]
    await journal.append(ending("r"))
    await journal.put_records(ALICE, "w", [record("b")])
    assert list(await journal.records(ALICE, "w")) == [record("b")]


# Holding.


@pytest.mark.contract("C19")
async def test_nodes_are_noted_once_each_and_told_to_whoever_claims(journal: Journal) -> None:
    await journal.accept(new_run("r"), HERE, LONG)
    for node in ("b", "a", "b", 'strange "name"', "a"):
        await journal.use_node("r", 1, node)
    await journal.let_go("r", 1)
    (claimed,) = await journal.claim(THERE, LONG)
    assert claimed.nodes == ("b", "a", 'strange "name"')
    assert (await found(journal, "r")).nodes == claimed.nodes


@pytest.mark.contract("F5")
async def test_a_renewal_is_of_all_of_a_holders_leases_and_of_no_others(journal: Journal) -> None:
    await journal.accept(new_run("mine"), HERE, 10.0)
    await journal.accept(new_run("mine too"), HERE, 10.0)
    await journal.accept(new_run("theirs"), THERE, 10.0)
    held = await journal.renew(HERE, LONG)
    assert {(it.run_id, it.epoch, it.cancel_reason) for it in held} == {("mine", 1, None), ("mine too", 1, None)}
    left = {name: kept.lease_left for name in ("mine", "mine too", "theirs") if (kept := await journal.find(name))}
    assert left["mine"] > LONG - 10
    assert left["mine too"] > LONG - 10
    assert left["theirs"] <= 10.0


TWIN = replace(HERE, address="127.0.0.1:7402", life="another")


@pytest.mark.contract("C18", "F5")
async def test_a_name_belongs_to_one_life_of_a_coordinator_until_it_is_over_or_dropped(journal: Journal) -> None:
    assert await journal.take_name(HERE, LONG) is None
    assert await journal.take_name(HERE, LONG) is None, "it is its own"
    assert await journal.take_name(THERE, LONG) is None, "this is another name"
    first = await journal.take_name(TWIN, LONG)
    assert first is not None
    assert (first.life, first.address) == (HERE.life, HERE.address)
    assert await journal.take_name(TWIN, LONG) == first
    await journal.drop_name(TWIN)
    assert await journal.take_name(TWIN, LONG) == first, "it was not its to drop"
    await journal.renew(HERE, LONG)
    renewed = await journal.take_name(TWIN, LONG)
    assert renewed is not None
    assert renewed.until > first.until
    await journal.drop_name(HERE)
    assert await journal.take_name(TWIN, OVER) is None
    assert await journal.take_name(HERE, LONG) is None, "the lease of the other was over"


@pytest.mark.contract("C19", "F5")
async def test_the_next_life_of_a_coordinator_at_the_same_address_has_its_name_at_once(journal: Journal) -> None:
    again = replace(HERE, life="again")
    await journal.take_name(HERE, LONG)
    assert await journal.take_name(again, LONG) is None
    with pytest.raises(NameTaken):
        await journal.renew(HERE, LONG)
    assert list(await journal.renew(again, LONG)) == []
    nowhere = [Holder(name="nowhere", address="", life=life) for life in ("one", "other")]
    assert await journal.take_name(nowhere[0], LONG) is None
    assert await journal.take_name(nowhere[1], LONG) is not None, "no address is not the same one"


@pytest.mark.contract("C18", "F5")
async def test_runs_are_not_renewed_for_a_life_that_does_not_have_their_holders_name(journal: Journal) -> None:
    await journal.accept(new_run("r"), HERE, 10.0)
    await journal.renew(HERE, 10.0)
    with pytest.raises(NameTaken, match=HERE.address):
        await journal.renew(TWIN, LONG)
    kept = await journal.find("r")
    assert kept is not None
    assert kept.lease_left <= 10.0, "it was renewed all the same"
    await journal.drop_name(HERE)
    assert [it.run_id for it in await journal.renew(TWIN, LONG)] == ["r"]
    with pytest.raises(NameTaken, match=TWIN.address):
        await journal.renew(HERE, LONG)


@pytest.mark.contract("C18", "F5")
async def test_of_many_lives_that_want_a_name_at_once_one_has_it(journal: Journal) -> None:
    lives = [replace(HERE, address=f"n:{number}", life=f"life {number}") for number in range(8)]
    taken = await asyncio.gather(*(journal.take_name(life, LONG) for life in lives))
    (first,) = [life.life for life, namesake in zip(lives, taken, strict=True) if namesake is None]
    assert {namesake.life for namesake in taken if namesake is not None} == {first}


@pytest.mark.contract("C39")
async def test_a_name_that_nobody_has_any_more_is_forgotten(journal: Journal) -> None:
    await journal.take_name(HERE, LONG)
    await journal.take_name(THERE, OVER)
    await journal.sweep(KEEP_ALL)
    namesake = await journal.take_name(TWIN, LONG)
    assert namesake is not None
    assert namesake.life == HERE.life
    assert list(await journal.renew(THERE, LONG)) == [], "who was only late has its name again"


@pytest.mark.contract("F5")
async def test_a_lease_that_is_over_is_renewed_unless_somebody_has_claimed_the_run(journal: Journal) -> None:
    await journal.accept(new_run("r"), HERE, LONG)

    async def is_over() -> bool:
        kept = await journal.find("r")
        return kept is not None and kept.lease_left < 0

    for renewed in (LONG, 0.1):
        assert [it.run_id for it in await journal.renew(HERE, 0.1)] == ["r"]
        await eventually(is_over, "the lease is over")
        assert [(it.run_id, it.epoch) for it in await journal.renew(HERE, renewed)] == [("r", 1)]
        if renewed == LONG:
            assert list(await journal.claim(THERE, LONG)) == []
    await eventually(is_over, "the lease is over")
    assert [(it.run.run_id, it.epoch) for it in await journal.claim(THERE, LONG)] == [("r", 2)]
    assert list(await journal.renew(HERE, LONG)) == []


@pytest.mark.contract("C19")
async def test_a_claim_tells_for_how_long_nobody_has_held_a_run(journal: Journal) -> None:
    await journal.accept(new_run("let go"), HERE, LONG)
    await journal.let_go("let go", 1)
    await journal.accept(new_run("over"), HERE, OVER)
    before = await journal.find("over")
    assert before is not None
    unheld = {kept.run.run_id: kept.unheld for kept in await journal.claim(THERE, LONG)}
    assert unheld["let go"] == math.inf
    assert -before.lease_left <= unheld["over"] < LONG


@pytest.mark.contract("C19", "F5")
async def test_only_a_run_that_nobody_holds_is_claimed_and_gets_its_next_epoch(journal: Journal) -> None:
    await journal.accept(new_run("held"), HERE, LONG)
    await journal.accept(new_run("over", request_id="q"), HERE, OVER)
    await journal.accept(new_run("let go"), HERE, LONG)
    await journal.let_go("let go", 1)
    before = await found(journal, "over")
    claimed = {kept.run.run_id: kept for kept in await journal.claim(THERE, 20.0)}
    assert set(claimed) == {"over", "let go"}
    for name, kept in claimed.items():
        assert (kept.epoch, kept.holder, kept.run.coordinator) == (2, THERE, "there")
        assert kept.lease_left == pytest.approx(20.0, abs=5.0)
        assert replace(kept, lease_left=0.0, unheld=0.0) == await found(journal, name)
    over = claimed["over"]
    assert over.held_since >= before.held_since
    assert (over.request_id, over.run.created_at) == ("q", before.run.created_at)
    assert list(await journal.claim(HERE, LONG)) == []
    assert {it.run_id for it in await journal.renew(HERE, LONG)} == {"held"}
    assert {(it.run_id, it.epoch) for it in await journal.renew(THERE, LONG)} == {("over", 2), ("let go", 2)}


@pytest.mark.contract("C19", "C31")
async def test_runs_of_other_kinds_and_those_that_are_left_to_others_are_not_claimed(journal: Journal) -> None:
    for name, kind in [("a", RunKind.PARALLEL), ("b", RunKind.PARALLEL), ("c", RunKind.SCRIPT)]:
        new = new_run(name)
        await journal.accept(replace(new, run=replace(new.run, kind=kind)), HERE, OVER)
    wanted = Claim(kinds=frozenset({RunKind.PARALLEL}), besides=frozenset({"b"}))
    assert [kept.run.run_id for kept in await journal.claim(THERE, LONG, wanted=wanted)] == ["a"]
    assert {kept.run.run_id for kept in await journal.claim(THERE, LONG)} == {"b", "c"}


@pytest.mark.contract("C31", "F6")
async def test_a_runs_job_is_noted_by_its_holder_only_and_kept(journal: Journal) -> None:
    await journal.accept(new_run("r", request_id="q"), HERE, OVER)
    await journal.set_job("r", 1, "parallel-7")
    assert (await found(journal, "r")).run.job_id == "parallel-7"
    (claimed,) = await journal.claim(THERE, LONG)
    assert claimed.run.job_id == "parallel-7"
    with pytest.raises(Fenced):
        await journal.set_job("r", 1, "parallel-8")
    await journal.append(ending("r", epoch=2))
    assert (await found(journal, "r")).run.job_id == "parallel-7"
    with pytest.raises(Fenced):
        await journal.set_job("r", 2, "parallel-9")


@pytest.mark.contract("C44", "C31")
@pytest.mark.parametrize("state", ENDS)
async def test_the_request_of_a_job_gives_its_run_however_that_ended(journal: Journal, state: RunState) -> None:
    await journal.accept(new_run("r", request_id="q"), HERE, LONG)
    await journal.set_job("r", 1, "parallel-7")
    await journal.append(ending("r", state=state))
    again = await journal.accept(new_run("other", request_id="q"), HERE, LONG)
    assert (again.run.run_id, again.run.state) == ("r", state)


async def test_claims_are_limited_and_those_come_first_that_were_free_for_longest(journal: Journal) -> None:
    for number in range(4):
        await journal.accept(new_run(f"r{number}"), HERE, -60.0 * number)  # r3 has been free for longest
    claimed = [await journal.claim(THERE, LONG, limit=limit) for limit in (1, 2, 5)]
    assert [{kept.run.run_id for kept in batch} for batch in claimed] == [{"r3"}, {"r2", "r1"}, {"r0"}]


async def test_a_holder_may_claim_what_it_lost_itself(journal: Journal) -> None:
    await journal.accept(new_run("r"), HERE, OVER)
    (claimed,) = await journal.claim(HERE, LONG)
    assert (claimed.holder, claimed.epoch) == (HERE, 2)
    with pytest.raises(Fenced):
        await journal.append(append("r", epoch=1))


@pytest.mark.contract("C18", "C19", "F5")
async def test_two_holders_that_claim_at_once_share_the_runs(journal: Journal) -> None:
    names = {f"r{number}" for number in range(40)}
    await asyncio.gather(*(journal.accept(new_run(name), HERE, OVER) for name in names))
    holders = [HERE, THERE] * 10
    batches = await asyncio.gather(*(journal.claim(holder, LONG, limit=3) for holder in holders))
    claimed = [kept.run.run_id for batch in batches for kept in batch]
    assert sorted(claimed) == sorted(names)


@pytest.mark.contract("C43")
async def test_a_run_that_was_let_go_is_nobodys_until_it_is_claimed(journal: Journal) -> None:
    await journal.accept(new_run("r"), HERE, LONG)
    await journal.let_go("r", 1)
    kept = await journal.find("r")
    assert kept is not None
    assert (kept.holder.name, kept.lease_left, kept.epoch, kept.run.coordinator) == ("", 0.0, 1, "here")
    assert list(await journal.renew(HERE, LONG)) == []


@pytest.mark.contract("C27")
async def test_the_first_reason_to_cancel_is_kept_and_told_to_whoever_holds_the_run(journal: Journal) -> None:
    await journal.accept(new_run("r"), HERE, LONG)
    await journal.accept(new_run("other"), HERE, LONG)
    await journal.ask_to_cancel("r", "first")
    await journal.ask_to_cancel("r", "second")
    told = {it.run_id: it.cancel_reason for it in await journal.renew(HERE, LONG)}
    assert told == {"r": "first", "other": None}
    assert (await found(journal, "r")).cancel_reason == "first"
    await journal.let_go("r", 1)
    (claimed,) = await journal.claim(THERE, LONG)
    assert claimed.cancel_reason == "first"


async def test_an_empty_reason_to_cancel_is_a_reason(journal: Journal) -> None:
    await journal.accept(new_run("r"), HERE, LONG)
    await journal.ask_to_cancel("r", "")
    await journal.ask_to_cancel("r", "second")
    assert [it.cancel_reason for it in await journal.renew(HERE, LONG)] == [""]


# Lists.


async def test_runs_are_listed_newest_first_in_pages_that_newer_runs_do_not_move(journal: Journal) -> None:
    names = [f"r{number}" for number in (3, 1, 4, 5, 9, 2, 6)]
    await asyncio.gather(*(journal.accept(new_run(name), HERE, LONG) for name in names))
    await journal.accept(new_run("theirs", owner="bob"), HERE, LONG)
    listed: list[str] = []
    before = None
    while page := await journal.list_runs(RunFilter(owner=ALICE, before=before, limit=3)):
        listed += [kept.run.run_id for kept in page]
        last = page[-1].run
        assert last.created_at is not None
        before = (last.created_at, last.run_id)
        await journal.accept(new_run(f"newer {len(listed)}"), HERE, LONG)
    assert listed == names[::-1]
    newest = await journal.list_runs(RunFilter(owner=ALICE))
    assert [kept.run.run_id for kept in newest][:2] == ["newer 7", "newer 6"]
    times = [kept.run.created_at for kept in newest if kept.run.created_at]
    assert times == sorted(set(times), reverse=True)


@pytest.mark.contract("C34")
async def test_runs_are_listed_of_a_principal_with_those_nested_in_it_or_of_all(journal: Journal) -> None:
    owners = ["alice", "alice/session-7", "alice/session-7/x", "alicex", "Alice/x", "alice%", "bob"]
    for number, owner in enumerate(owners):
        await journal.accept(new_run(f"r{number}", owner=owner), HERE, LONG)

    async def listed(owner: str | None) -> list[str]:
        return [kept.run.owner for kept in await journal.list_runs(RunFilter(owner=owner))]

    assert await listed("alice") == ["alice/session-7/x", "alice/session-7", "alice"]
    assert await listed("alice/session-7") == ["alice/session-7/x", "alice/session-7"]
    assert await listed("bob") == ["bob"]
    assert await listed("alice/s") == []
    assert sorted(await listed(None)) == sorted(owners)


async def test_runs_are_listed_by_state_and_workflow(journal: Journal) -> None:
    for name, workflow_id, state in (
        ("r1", "w", RunState.COMPLETED),
        ("r2", "w", RunState.FAILED),
        ("r3", "v", RunState.FAILED),
        ("r4", "w", RunState.RUNNING),
        ("r5", "", RunState.PENDING),
    ):
        await journal.accept(new_run(name, workflow_id=workflow_id), HERE, LONG)
        if state is not RunState.PENDING:
            await journal.append(append(name, state=state))

    async def listed(states: set[RunState], workflow_id: str = "") -> list[str]:
        wanted = RunFilter(owner=ALICE, states=frozenset(states), workflow_id=workflow_id)
        return [kept.run.run_id for kept in await journal.list_runs(wanted)]

    assert await listed({RunState.FAILED}) == ["r3", "r2"]
    assert await listed({RunState.PENDING, RunState.RUNNING}) == ["r5", "r4"]
    assert await listed(set(), "w") == ["r4", "r2", "r1"]
    assert await listed({RunState.COMPLETED, RunState.FAILED}, "w") == ["r2", "r1"]
    assert await listed(set(), "none") == []


# What is not kept for ever.


async def kept_names(journal: Journal) -> list[str]:
    return [kept.run.run_id for kept in await journal.list_runs(RunFilter(owner=ALICE))][::-1]


async def ended_run(journal: Journal, name: str, count: int = 1) -> None:
    await journal.accept(new_run(name, request=b"request"), HERE, LONG)
    await journal.append(ending(name, entries=events(1, count)))

    async def moment_has_passed() -> bool:
        """Runs that end in one instant have no order among them."""
        probe = await journal.accept(new_run(f"probe {uuid.uuid4()}", owner="nobody"), HERE, LONG)
        ended = await found(journal, name)
        return ended.run.ended_at is not None and probe.held_since > ended.run.ended_at

    await eventually(moment_has_passed, "another instant")


@pytest.mark.contract("C39")
async def test_ended_runs_beyond_their_number_go_those_first_that_ended_first(journal: Journal) -> None:
    for name in ("r1", "r2"):
        await journal.accept(new_run(name), HERE, OVER)
    for name in ("r3", "r4", "r5"):
        await ended_run(journal, name)
    await journal.append(ending("r1"))
    assert await journal.sweep(KEEP_ALL) == 0
    assert await journal.sweep(Retention(ended_runs=2)) == 2
    assert await kept_names(journal) == ["r1", "r2", "r5"]
    assert list(await journal.entries("r3", 1)) == []
    assert await journal.request("r3") == b""
    assert list(await journal.entries("r5", 1)) == events(1, 1)
    assert await journal.request("r5") == b"request"
    assert await journal.sweep(Retention(ended_runs=0)) == 2
    assert await kept_names(journal) == ["r2"]


@pytest.mark.contract("C39")
async def test_ended_runs_go_when_they_are_old(journal: Journal) -> None:
    await journal.accept(new_run("r1"), HERE, OVER)
    await ended_run(journal, "r2")
    assert await journal.sweep(Retention(ended_run_age=60.0)) == 0

    async def is_swept() -> bool:
        return await journal.sweep(Retention(ended_run_age=0.001)) == 1

    await eventually(is_swept, "the run is old")
    assert await kept_names(journal) == ["r1"]


@pytest.mark.contract("C39")
async def test_surplus_events_go_with_those_runs_first_that_ended_first_and_rows_stay(journal: Journal) -> None:
    for name, count in (("r1", 5), ("r2", 300), ("r3", 20)):
        await ended_run(journal, name, count)
    await journal.accept(new_run("r4"), HERE, LONG)
    await journal.append(append("r4", events(1, 1000)))
    await journal.sweep(Retention(events=320))
    counts = [len(await all_entries(journal, name)) for name in ("r1", "r2", "r3", "r4")]
    assert counts == [0, 300, 20, 1000]
    await journal.sweep(Retention(events=319))
    assert list(await journal.entries("r2", 1)) == []
    assert (await found(journal, "r2")).last_sequence == 300
    assert await journal.request("r2") == b"request"
    await journal.sweep(Retention(events=0))
    assert [len(await all_entries(journal, name)) for name in ("r3", "r4")] == [0, 1000]
    assert await kept_names(journal) == ["r1", "r2", "r3", "r4"]


@pytest.mark.contract("C39")
async def test_records_go_when_their_workflow_was_left_alone_for_long(journal: Journal) -> None:
    for name in ("goes on", "left"):
        await journal.accept(new_run(name, workflow_id=name), HERE, OVER)
        await journal.append(append(name, records=[record("a")]))
    await journal.append(ending("left", state=RunState.CANCELLED))
    await journal.put_records(ALICE, "put", [record("a")])

    async def left() -> list[str]:
        return [name for name in ("goes on", "left", "put") if await journal.records(ALICE, name)]

    await journal.sweep(Retention(record_age=60.0))
    assert await left() == ["goes on", "left", "put"]

    async def are_swept() -> bool:
        await journal.sweep(Retention(record_age=0.001))
        return await left() == ["goes on"]

    await eventually(are_swept, "records are swept")
    assert await kept_names(journal) == ["goes on", "left"]
