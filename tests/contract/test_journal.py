"""New runs in every journal: what is accepted, found and refused (C17, C18, C44)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from coordinator.journal.journal import Journal
from fanfold.errors import Aborted
from fanfold.model.run import Budget, Run, RunKind, RunState, StepCounts
from support.journals import ALICE, ENDS, HERE, LONG, OVER, THERE, append, ending, events, found, new_run


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
