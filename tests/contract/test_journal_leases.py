"""Who holds a run in every journal, for how long, and who may claim it (C19)."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest

from coordinator.journal.journal import Claim, Fenced, Journal
from fanfold.model.run import RunKind, RunState
from support.journals import ENDS, HERE, LONG, OVER, THERE, append, ending, eventually, found, new_run


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
