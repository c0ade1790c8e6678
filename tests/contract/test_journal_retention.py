"""What every journal keeps of runs that have ended, and forgets."""

from __future__ import annotations

import uuid

import pytest

from coordinator.journal.journal import Journal, Retention, RunFilter
from fanfold.model.run import RunState
from support.journals import (
    ALICE,
    HERE,
    KEEP_ALL,
    LONG,
    OVER,
    all_entries,
    append,
    ending,
    events,
    eventually,
    found,
    new_run,
    record,
)


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
