"""Lists of runs in every journal."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.journal.journal import Journal, RunFilter
from fanfold.model.run import RunState
from support.journals import ALICE, HERE, LONG, append, new_run


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
