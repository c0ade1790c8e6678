"""What every store of jobs promises, in memory, in SQLite and in PostgreSQL alike, there also to several registries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fanfold.errors import Aborted
from fanfold.model.job import JobFilter, JobState, OutputSource
from job_registry.states import RUNNING, given_up, settled
from job_registry.store.store import RESULT_PART_BYTES, ChangesGone, JobQuery, JobStore, KeptJob, Moved, Retention
from support.job_stores import (
    DONE,
    STOP,
    Opens,
    add,
    add_settled,
    keep_output,
    memory_store,
    moved,
    output_write,
    pieces_of,
    postgres_store,
    postgres_stores,
    sqlite_store,
)
from support.postgres import Server

EVERYTHING = JobQuery()


@pytest.fixture(
    params=[memory_store, sqlite_store, postgres_store, postgres_stores],
    ids=["memory", "sqlite", "postgres", "registries"],
)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[JobStore]:
    if request.param in {postgres_store, postgres_stores}:
        server: Server = request.getfixturevalue("postgres")
        with server.database() as url:
            async with request.param(url) as opened:
                yield opened
        return
    opens: Opens = request.param
    async with opens(tmp_path) as opened:
        yield opened


async def ids(store: JobStore, **fields: Any) -> list[str]:
    return [job.id for job in await store.list_jobs(JobQuery(**fields))]


@pytest.mark.contract("C32", "C33")
async def test_numbers_are_given_once_also_at_the_same_time(store: JobStore) -> None:
    numbers = await asyncio.gather(*(store.take_number() for _ in range(50)))
    assert sorted(numbers) == list(range(1, 51))


@pytest.mark.contract("C33")
async def test_a_new_job_runs_and_is_found_as_it_was_added(store: JobStore) -> None:
    await store.take_number()
    before = datetime.now(UTC)
    job = await add(store, kind="web-search", label="l", parent="p", holds="process 7", sources=["out", "err"], epoch=3)
    assert job == await store.find(job.number)
    assert (job.id, job.owner, job.producer, job.label, job.parent) == ("web-search-2", "alice", "alice", "l", "p")
    assert (job.holds, job.epoch, job.standing, job.request_id) == ("process 7", 3, RUNNING, "r2")
    assert job.sources == (OutputSource(name="out"), OutputSource(name="err"))
    assert (job.progress, job.result_bytes, job.settled_at, job.deleted) == ("", None, None, False)
    assert abs(job.created_at - before) < timedelta(seconds=5)


async def test_there_is_no_job_with_another_number(store: JobStore) -> None:
    await add(store)
    assert await store.find(2) is None


@pytest.mark.contract("C32", "C44")
async def test_a_request_of_the_same_owner_has_one_job(store: JobStore) -> None:
    first = await add(store, request_id="r", label="first")
    assert await add(store, request_id="r", label="second") == first
    other = await add(store, request_id="r", owner="bob")
    assert other.id != first.id
    assert await store.find_request("alice", "r") == first
    assert await store.find_request("bob", "r") == other
    assert await store.find_request("carol", "r") is None


@pytest.mark.contract("C38", "F5")
async def test_each_stream_that_comes_to_hold_a_job_has_the_next_hold_and_is_told_as_a_change(store: JobStore) -> None:
    job = await add(store, holder="a", epoch=2)
    assert (job.holder, job.hold) == ("a", 1)
    kept = await store.attach(job.number, 7, "b", 1)
    assert (kept.holder, kept.hold, kept.epoch) == ("b", 2, 7)
    assert kept == await store.find(job.number)
    assert (await store.changes(EVERYTHING, job.change)).jobs == [kept]
    with pytest.raises(Aborted) as refused:
        await store.attach(job.number, 6, "a", 2)
    assert refused.value.reason == "STALE_EPOCH"
    assert kept == await store.find(job.number)
    assert (await store.attach(job.number, 7, "b", 2)).hold == 3


@pytest.mark.contract("C38", "F5")
async def test_a_stream_does_not_come_to_hold_a_job_that_another_one_came_to_hold_first(store: JobStore) -> None:
    job = await add(store, holder="a")
    kept = await store.attach(job.number, 1, "b", 1)
    assert await store.attach(job.number, 2, "a", 1) == kept == await store.find(job.number)
    assert await store.position() == kept.change


@pytest.mark.contract("C38", "F5")
async def test_what_a_stream_writes_after_another_one_has_come_is_refused(store: JobStore) -> None:
    job = await add(store, holder="a", sources=["out"])
    kept = await store.attach(job.number, 1, "b", 1)
    await keep_output(store, output_write(job, (0, b"late")), progress={job.number: "late"}, hold=1)
    with pytest.raises(Aborted) as refused:
        await moved(store, job.number, DONE, hold=1, result=b"late")
    assert refused.value.reason == "SUPERSEDED"
    await store.leave({job.number: 1})
    assert kept == await store.find(job.number)
    assert await pieces_of(store, job.number) == []
    await keep_output(store, output_write(job, (0, b"good")), progress={job.number: "half"}, hold=2)
    done = await moved(store, job.number, DONE, hold=2)
    assert (done.state, done.progress, done.sources[0].total_bytes) == (JobState.COMPLETED, "half", 4)


@pytest.mark.contract("C38")
async def test_a_stream_that_has_ended_is_noted_once_and_the_next_one_has_another_hold(store: JobStore) -> None:
    job, done = await add(store, holder="a"), await add_settled(store, holder="a")
    await store.leave({job.number: 1, done.number: 1})
    left = await store.find(job.number)
    assert left is not None
    assert (left.holder, left.hold) == ("", 1)
    assert (await store.changes(EVERYTHING, done.change)).jobs == [left]
    await store.leave({job.number: 1})
    assert await store.position() == left.change
    assert (await store.attach(job.number, 1, "b", 1)).hold == 2


async def test_what_is_settled_is_not_held_again(store: JobStore) -> None:
    done = await add_settled(store)
    assert await store.attach(done.number, 9, "b", 1) == done == await store.find(done.number)
    assert await moved(store, done.number, DONE, hold=7) == done


@pytest.mark.contract("C35")
async def test_a_move_begins_where_the_job_stands_by_then(store: JobStore) -> None:
    job = await add(store)
    killed = partial(settled, state=JobState.KILLED, detail="gone")
    assert (await store.move(job.number, STOP)).is_new
    done = await moved(store, job.number, killed)
    assert (done.state, done.standing.stop_reason) == (JobState.KILLED, "enough")
    kept = await moved(store, (await add(store)).number, STOP, progress="half")
    assert await store.move(kept.number, STOP, progress="more") == Moved(kept, is_new=False)


@pytest.mark.contract("C37")
async def test_output_that_is_too_much_for_what_is_settled_is_found_and_can_be_cut(store: JobStore) -> None:
    running, done, gone, little = [await add(store, sources=["out"]) for _ in range(4)]
    for job in (running, done, gone):
        await keep_output(store, output_write(job, (0, b"abc"), (3, b"def")))
    await moved(store, running.number, STOP, settled_bytes=5)
    await moved(store, little.number, DONE, output=[output_write(little, (0, b"abcde"))], settled_bytes=5)
    await moved(store, gone.number, DONE, settled_bytes=5)
    done = await moved(store, done.number, DONE, output=[output_write(done, (6, b"g"))], settled_bytes=5)
    assert await store.uncut(3600) == []
    await asyncio.sleep(0.005)
    assert sorted(await store.uncut(0)) == [done.number, gone.number]
    await store.delete(gone.number)
    assert await store.uncut(0) == [done.number]
    end = {job.number: [output_write(job, (3, b"def"), earliest=3, afresh=True)] for job in (running, done, gone)}
    await store.cut_output(end)
    assert await store.uncut(0) == []
    assert await pieces_of(store, running.number) == [(0, b"abc"), (3, b"def")]
    assert await pieces_of(store, done.number) == [(3, b"def")]
    assert await pieces_of(store, gone.number) == []
    kept = await store.find(done.number)
    assert kept is not None
    assert (kept.sources[0].earliest_offset, kept.change) == (3, done.change)
    await store.cut_output({done.number: [output_write(done, (5, b"f"), earliest=5, afresh=True)]})
    assert await pieces_of(store, done.number) == [(3, b"def")]


@pytest.mark.contract("C35")
async def test_the_first_settlement_stays(store: JobStore) -> None:
    job = await add(store)
    stopping = await moved(store, job.number, STOP)
    assert (stopping.state, stopping.settled_at) == (JobState.STOPPING, None)
    first = await moved(store, job.number, partial(settled, state=JobState.KILLED, detail="gone"), result=b"partial")
    assert first.settled_at is not None
    assert (first.state, first.standing.detail, first.standing.stop_reason) == (JobState.KILLED, "gone", "enough")
    second = await moved(store, job.number, DONE, result=b"whole")
    assert second == first == await store.find(job.number)
    assert await store.result_part(job.number, 0) == b"partial"


async def test_the_last_progress_stays(store: JobStore) -> None:
    job = await add(store)
    done = await moved(store, job.number, DONE, progress="all of it")
    assert done.progress == "all of it"


async def test_that_it_was_given_up_is_kept(store: JobStore) -> None:
    job = await add(store)
    kept = await moved(store, job.number, partial(given_up, detail="producer lost"))
    assert (kept.state, kept.standing.given_up, kept.standing.detail) == (JobState.FAILED, True, "producer lost")


@pytest.mark.contract("F6")
async def test_what_is_not_settled_is_found(store: JobStore) -> None:
    running, stopping, _ = await add(store), await add(store), await add_settled(store)
    stopping = await moved(store, stopping.number, STOP)
    found = await store.unsettled()
    assert sorted(found, key=lambda job: job.number) == [running, stopping]


@pytest.mark.contract("C34")
@pytest.mark.parametrize(
    ("reach", "seen"),
    [
        (None, ["k-6", "k-5", "k-4", "k-3", "k-2", "k-1"]),
        ("alice", ["k-6", "k-2", "k-1"]),
        ("alice/s1", ["k-6", "k-2"]),
        ("alice/s2", ["k-6"]),
        ("alic_", ["k-6"]),
        ("%", ["k-6"]),
        ("nobody", ["k-6"]),
    ],
)
async def test_a_list_reaches_what_the_principal_covers_and_what_is_open(
    store: JobStore, reach: str | None, seen: list[str]
) -> None:
    for owner in ("alice", "alice/s1", "alicex", "Alice/s1", "bob", ""):
        await add(store, owner=owner)
    assert await ids(store, reach=reach) == seen
    assert [job.id for job in (await store.changes(JobQuery(reach=reach), 0)).jobs] == seen[::-1]


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [
        (JobFilter(kind="build"), ["build-1"]),
        (JobFilter(label="l"), ["test-2"]),
        (JobFilter(parent="p"), ["test-3"]),
        (JobFilter(states=[JobState.RUNNING]), ["test-3", "test-2", "build-1"]),
        (JobFilter(states=[JobState.COMPLETED, JobState.KILLED]), ["test-4"]),
        (JobFilter(owner="bob"), ["test-5", "test-4"]),
        (JobFilter(owner="bob", states=[JobState.STOPPING]), ["test-5"]),
        (JobFilter(owner="bob", kind="build"), []),
    ],
)
async def test_a_list_and_the_changes_are_filtered(store: JobStore, wanted: JobFilter, seen: list[str]) -> None:
    await add(store, kind="build")
    await add(store, kind="test", label="l")
    await add(store, kind="test", parent="p")
    await add_settled(store, kind="test", owner="bob")
    await moved(store, (await add(store, kind="test", owner="bob/1")).number, STOP)
    assert await ids(store, wanted=wanted) == seen
    assert [job.id for job in (await store.changes(JobQuery(wanted=wanted), 0)).jobs] == seen[::-1]


async def test_pages_go_on_below_a_number(store: JobStore) -> None:
    for _ in range(5):
        await add(store)
    first = await store.list_jobs(JobQuery(limit=2))
    await add(store)
    second = await store.list_jobs(JobQuery(limit=2), before=first[-1].number)
    assert [job.number for job in [*first, *second]] == [5, 4, 3, 2]


@pytest.mark.contract("F23")
async def test_changes_are_told_as_jobs_are_now_each_once(store: JobStore) -> None:
    one, two = await add(store), await add(store)
    position = await store.position()
    assert (await store.changes(EVERYTHING, position)).jobs == []
    stopping = await moved(store, two.number, STOP)
    done = await moved(store, one.number, DONE)
    await store.attach(two.number, 2, "a", 1)
    await keep_output(store, progress={two.number: "half"}, hold=2)
    changes = await store.changes(EVERYTHING, position)
    assert [(job.id, job.state, job.progress) for job in changes.jobs] == [
        (one.id, JobState.COMPLETED, ""),
        (two.id, JobState.STOPPING, "half"),
    ]
    assert stopping.change < done.change < changes.jobs[1].change
    assert changes.position == await store.position()
    assert (await store.changes(EVERYTHING, changes.position)).jobs == []


@pytest.mark.contract("F23")
async def test_changes_come_in_pages_and_skip_what_is_not_wanted(store: JobStore) -> None:
    for number in range(6):
        await add(store, kind="odd" if number % 2 else "even")
    odd = JobFilter(kind="odd")
    first = await store.changes(JobQuery(wanted=odd, limit=2), 0)
    assert [job.id for job in first.jobs] == ["odd-2", "odd-4"]
    second = await store.changes(JobQuery(wanted=odd, limit=2), first.position)
    assert [job.id for job in second.jobs] == ["odd-6"]
    assert second.position == await store.position()


@pytest.mark.contract("C37", "F15")
async def test_output_is_kept_and_forgotten_up_to_the_earliest_offset(store: JobStore) -> None:
    job = await add(store, sources=["err", "out"])
    await keep_output(store, output_write(job, (0, b"abc"), (3, b"def")))
    await keep_output(store, output_write(job, (8, b"\xff"), earliest=4))
    assert await pieces_of(store, job.number) == [(3, b"def"), (8, b"\xff")]
    kept = await store.find(job.number)
    assert kept is not None
    source = OutputSource(name="out", total_bytes=9, earliest_offset=4, lossy=True)
    assert kept.sources == (OutputSource(name="err"), source)
    assert kept.change == job.change
    await keep_output(store, output_write(job, (5, b"fx"), earliest=5, afresh=True))
    assert await pieces_of(store, job.number) == [(5, b"fx")]
    assert await pieces_of(store, job.number, "err") == []


async def test_output_of_all_sources_is_found_at_once_and_from_an_offset_on(store: JobStore) -> None:
    job, other = [await add(store, sources=["err", "out"]) for _ in range(2)]
    await keep_output(store, output_write(job, (0, b"abc"), (3, b"def")))
    await keep_output(store, output_write(other, (0, b"x")))
    err, out = await store.output(job.number)
    assert (err.source, err.pieces) == (OutputSource(name="err"), [])
    assert (out.source.name, out.source.total_bytes, [it.data for it in out.pieces]) == ("out", 6, [b"abc", b"def"])
    assert await pieces_of(store, job.number, offset=2) == [(0, b"abc"), (3, b"def")]
    assert await pieces_of(store, job.number, offset=3) == [(3, b"def")]
    assert await pieces_of(store, job.number, offset=6) == []
    assert await store.output(job.number, "log") == await store.output(99) == []


async def test_the_last_output_comes_with_the_settlement_and_none_after_it(store: JobStore) -> None:
    job = await add(store, sources=["out"])
    done = await moved(store, job.number, DONE, output=[output_write(job, (0, b"the end"))])
    assert done.sources[0].total_bytes == 7
    await keep_output(store, output_write(job, (7, b"late")), progress={job.number: "late"})
    assert await pieces_of(store, job.number) == [(0, b"the end")]
    assert await store.find(job.number) == done


@pytest.mark.contract("C37")
@pytest.mark.parametrize("size", [0, 1, RESULT_PART_BYTES, RESULT_PART_BYTES + 1])
async def test_a_result_is_read_in_parts(store: JobStore, size: int) -> None:
    job = await add(store)
    done = await moved(store, job.number, DONE, result=b"x" * size)
    assert done.result_bytes == size
    parts: list[bytes] = []
    while (part := await store.result_part(job.number, len(parts))) is not None:
        assert len(part) <= RESULT_PART_BYTES
        parts.append(part)
    assert b"".join(parts) == b"x" * size
    assert len(parts) == max(1, -(-size // RESULT_PART_BYTES))


async def test_a_job_without_a_result_has_no_part_of_one(store: JobStore) -> None:
    job = await add_settled(store)
    assert job.result_bytes is None
    assert await store.result_part(job.number, 0) is None


@pytest.mark.contract("F23")
async def test_a_deleted_job_is_only_told_as_a_change_any_more(store: JobStore) -> None:
    job = await add(store, sources=["out"], request_id="r")
    position = await store.position()
    done = await moved(store, job.number, DONE, output=[output_write(job, (0, b"x"))], result=b"y")
    await store.delete(job.number)
    kept = await store.find(job.number)
    assert kept is not None
    assert kept.deleted
    assert await ids(store) == []
    assert await pieces_of(store, job.number) == []
    assert await store.result_part(job.number, 0) is None
    (told,) = (await store.changes(EVERYTHING, position)).jobs
    assert (told.id, told.state, told.deleted, told.change) == (job.id, JobState.COMPLETED, True, done.change)
    again = await add(store, request_id="r")
    assert again.number > job.number


def retention(count: int = 1000, age: float = 3600, each: int = 1000) -> Retention:
    return Retention(settled_jobs=count, settled_jobs_per_owner=each, settled_age=age)


@pytest.mark.contract("C39")
async def test_the_jobs_that_settled_first_are_forgotten_first_and_those_that_run_never(store: JobStore) -> None:
    oldest, running = await add(store, sources=["out"]), await add(store)
    newer = [await add_settled(store) for _ in range(3)]
    oldest = await moved(store, oldest.number, DONE, output=[output_write(oldest, (0, b"x"))], result=b"y")
    assert await store.purge(retention(count=4)) == 0
    assert await store.purge(retention(count=2)) == 2
    assert await ids(store) == [newer[2].id, running.id, oldest.id]
    assert await store.purge(retention(age=0)) == 2
    assert await ids(store) == [running.id]
    assert await pieces_of(store, oldest.number) == []
    assert await store.result_part(oldest.number, 0) is None


@pytest.mark.contract("C39")
async def test_a_busy_owner_has_no_jobs_of_others_forgotten(store: JobStore) -> None:
    running = await add(store, owner="alice")
    first = [await add_settled(store, owner=owner) for owner in ("bob", "alice/one", "alicex", "Alice", "")]
    busy = [await add_settled(store, owner=f"alice/{number % 2}") for number in range(3)]
    assert await store.purge(retention(each=4)) == 0
    assert await store.purge(retention(each=2)) == 2
    left = {running.id, *(job.id for job in first if job.owner != "alice/one"), *(job.id for job in busy[1:])}
    assert set(await ids(store)) == left
    assert await store.purge(retention(count=5, each=1)) == 1, "what is too much of alice's does not count for all"
    assert set(await ids(store)) == left - {busy[1].id}
    told = (await store.changes(EVERYTHING, busy[1].change - 1)).jobs
    assert [(job.id, job.deleted) for job in told] == [(busy[1].id, True), (busy[2].id, False)]


@pytest.mark.contract("C39", "F23")
async def test_what_tells_the_changes_of_deleted_jobs_is_bounded_by_itself(store: JobStore) -> None:
    kept = await add_settled(store, owner="bob")
    busy = [await add_settled(store, owner="alice") for _ in range(5)]
    while await store.purge(retention(count=2, each=1)):
        pass
    assert set(await ids(store)) == {kept.id, busy[-1].id}
    with pytest.raises(ChangesGone):
        await store.changes(EVERYTHING, kept.change)
    told = (await store.changes(EVERYTHING, busy[1].change)).jobs
    assert [(job.id, job.deleted) for job in told] == [(job.id, job is not busy[-1]) for job in busy[2:]]


@pytest.mark.contract("F23")
async def test_whoever_has_not_seen_a_forgotten_settlement_is_told_so(store: JobStore) -> None:
    first, second = await add(store), await add(store)
    before = await store.position()
    settled_first: KeptJob = await moved(store, first.number, DONE)
    after = await store.position()
    await moved(store, second.number, DONE)
    await store.purge(retention(count=1))
    with pytest.raises(ChangesGone):
        await store.changes(EVERYTHING, before)
    assert settled_first.change == after
    assert [job.id for job in (await store.changes(EVERYTHING, after)).jobs] == [second.id]
    with pytest.raises(ChangesGone):
        await store.changes(EVERYTHING, await store.position() + 1)


async def test_many_jobs_are_forgotten_at_once(store: JobStore) -> None:
    await asyncio.gather(*(add_settled(store) for _ in range(450)))
    assert await store.purge(retention(count=10)) == 440
    assert len(await store.list_jobs(JobQuery(limit=1000))) == 10


@pytest.mark.contract("F6", "C32")
async def test_a_file_keeps_all_of_it_for_the_next_life(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path) as store:
        job = await add(store, sources=["out"])
        await keep_output(store, output_write(job, (0, b"abc")), progress={job.number: "half"})
        done = await add_settled(store)
        skipped = await store.take_number()
        identity, position = store.identity, await store.position()
    async with sqlite_store(tmp_path) as store:
        (kept,) = await store.unsettled()
        assert (kept.id, kept.progress, kept.sources[0].total_bytes) == (job.id, "half", 3)
        assert await pieces_of(store, job.number) == [(0, b"abc")]
        assert await store.find(done.number) == done
        assert await store.take_number() == skipped + 1
        assert (store.identity, await store.position()) == (identity, position)
