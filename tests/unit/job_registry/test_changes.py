"""The last changes, shared by all watchers: the same that the store would tell, with fewer reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold.background import background
from fanfold.model.job import JobFilter, JobState
from job_registry import changes as changes_module
from job_registry.bell import Bell
from job_registry.changes import RecentChanges
from job_registry.limits import Room
from job_registry.states import settled
from job_registry.store.memory import MemoryJobStore
from job_registry.store.store import Changes, ChangesGone, JobQuery, KeptJob, NewJob, Retention, StoreFailed
from support.job_stores import DONE, STOP, add, add_settled, keep_output, moved
from support.job_words import Producing, jobs_in
from support.mesh import until

pytestmark = pytest.mark.contract("F23")


class Counted(MemoryJobStore):
    """Counts how often its changes are read, and fails when it is to."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.fails = False

    async def changes(self, query: JobQuery, after: int) -> Changes:
        if self.fails:
            raise StoreFailed
        self.reads += 1
        return await super().changes(query, after)


class Followed:
    """Recent changes that are followed, and the bell that says that there are more."""

    def __init__(self, store: Counted, most: int) -> None:
        self.store = store
        self.bell = Bell()
        self.recent = RecentChanges(store, self.bell, most)

    async def catch_up(self) -> None:
        last = await self.store.position()
        self.bell.ring()
        await until(lambda: self.recent._position == last, "the last change is read")


@asynccontextmanager
async def followed(most: int = 100) -> AsyncIterator[Followed]:
    made = Followed(Counted(), most)
    async with background(made.recent.follow()):
        await until(lambda: made.recent.told.count > 0, "it begins")
        yield made


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "GATHER_SECONDS", 0.0)
    monkeypatch.setattr(changes_module, "RETRY_SECONDS", 0.01)


def last_states(jobs: Any) -> dict[str, KeptJob]:
    return {job.id: job for job in jobs}


FAILED = partial(settled, state=JobState.FAILED, detail="y")

moves = st.lists(st.tuples(st.sampled_from(["add", "stop", "settle", "progress"]), st.integers(0, 5)), max_size=30)


@settings(max_examples=60, deadline=None, database=None)
@given(moves, st.integers(1, 40))
async def test_it_tells_from_every_position_what_the_store_tells(steps: list[tuple[str, int]], most: int) -> None:
    async with followed(most) as it:
        store = it.store
        jobs: list[KeptJob] = []
        for number, (move, which) in enumerate(steps):
            if move == "add" or not jobs:
                jobs.append(await add(store, owner=f"p{which}"))
                continue
            job = jobs[which % len(jobs)]
            if move == "progress":
                await keep_output(store, progress={job.number: f"line {number}"})
            else:
                await moved(store, job.number, STOP if move == "stop" else FAILED)
            if number % 7 == 0:
                await it.catch_up()
        await it.catch_up()
        last = await store.position()
        for query in (JobQuery(), JobQuery(reach="p1"), JobQuery(wanted=JobFilter(states=[JobState.FAILED]))):
            for position in range(last + 1):
                found = await it.recent.after(query, position)
                expected = await store.changes(query, position)
                assert found.position == expected.position == last
                assert [job.change for job in found.jobs] == sorted(job.change for job in found.jobs)
                told = last_states(found.jobs)
                assert {each.id for each in expected.jobs} <= told.keys()
                assert all(told[each.id] == each for each in expected.jobs)
                ends = [job.id for job in found.jobs if job.state.is_settled]
                assert len(ends) == len(set(ends))


async def test_many_watchers_cost_the_store_no_more_reads_than_one() -> None:
    async with followed() as it:
        position = await it.store.position()
        await add_settled(it.store)
        await it.catch_up()
        reads = it.store.reads
        for _ in range(50):
            assert [job.id for job in (await it.recent.after(JobQuery(), position)).jobs][-1:] == ["k-1"]
        assert it.store.reads == reads


async def test_pages_of_recent_changes_follow_one_another() -> None:
    async with followed() as it:
        for _ in range(5):
            await add(it.store)
        await it.catch_up()
        query, position, told = JobQuery(limit=2), 0, []
        while True:
            page = await it.recent.after(query, position)
            told += [job.number for job in page.jobs]
            position = page.position
            if len(page.jobs) < 2:
                break
        assert told == [1, 2, 3, 4, 5]


async def test_a_watcher_that_is_far_behind_reads_the_store_and_is_told_when_that_has_forgotten() -> None:
    async with followed(most=2) as it:
        for _ in range(5):
            await add_settled(it.store)
        await it.catch_up()
        assert len((await it.recent.after(JobQuery(), 0)).jobs) == 5
        await it.store.purge(Retention(settled_jobs=1, settled_jobs_per_owner=9, settled_age=3600))
        with pytest.raises(ChangesGone):
            await it.recent.after(JobQuery(), 0)
        with pytest.raises(ChangesGone):
            await it.recent.after(JobQuery(), 999)


async def test_it_goes_on_when_the_store_can_be_read_again() -> None:
    async with followed() as it:
        it.store.fails = True
        job = await add(it.store)
        it.bell.ring()
        await asyncio.sleep(0.05)  # so that it fails at least once
        it.store.fails = False
        await moved(it.store, job.number, DONE)
        await it.catch_up()
        assert [each.state for each in (await it.recent.after(JobQuery(), 0)).jobs] == [JobState.COMPLETED]


async def test_it_begins_anew_when_the_store_has_forgotten_what_it_did_not_read() -> None:
    async with followed() as it:
        it.store.fails = True
        it.bell.ring()
        await asyncio.sleep(0.05)
        for _ in range(3):
            await add_settled(it.store)
        await it.store.purge(Retention(settled_jobs=0, settled_jobs_per_owner=9, settled_age=3600))
        job = await add(it.store)
        it.store.fails = False
        await it.catch_up()
        position = await it.store.position()
        await moved(it.store, job.number, DONE)
        await it.catch_up()
        assert [each.id for each in (await it.recent.after(JobQuery(), position)).jobs] == [job.id]


@pytest.mark.contract("C39")
async def test_jobs_that_could_not_be_read_anew_are_none_that_the_store_need_not_count() -> None:
    class Failing(MemoryJobStore):
        async def unsettled(self) -> Sequence[KeptJob]:
            if elsewhere:
                raise StoreFailed
            return await super().unsettled()

        async def add(self, new: NewJob, room: Room) -> KeptJob:
            rooms.append(room)
            return await super().add(new, room)

    elsewhere: list[KeptJob] = []
    rooms: list[Room] = []
    store = Failing()
    async with jobs_in(store) as jobs:
        elsewhere.append(await add(store))
        with pytest.raises(StoreFailed):
            await jobs.recent.begin()
        await Producing(jobs).register()
        assert rooms[-1].position < elsewhere[0].change
        elsewhere.clear()
        await jobs.recent.begin()
        await Producing(jobs).register("another")
        assert (rooms[-1].live, rooms[-1].position) == (3, await store.position() - 1)


@pytest.mark.contract("C39")
async def test_long_words_leave_room_for_fewer_changes() -> None:
    store = Counted()
    recent = RecentChanges(store, bell := Bell(), most=100, most_bytes=50_000)
    async with background(recent.follow()):
        await until(lambda: recent.told.count > 0, "it begins")
        jobs = [await add(store, label="x" * 10_000) for _ in range(10)]
        bell.ring()
        await until(lambda: recent._position == jobs[-1].change, "the last change is read")
        reads = store.reads
        assert len((await recent.after(JobQuery(), jobs[-5].change)).jobs) == 4
        assert store.reads == reads
        assert len((await recent.after(JobQuery(), 0)).jobs) == 10
        assert store.reads == reads + 1, "what is not remembered is in the store"
        for _ in range(10):
            await moved(store, (await add(store)).number, DONE)
        bell.ring()
        last = await store.position()
        await until(lambda: recent._position == last, "the last change is read")
        reads = store.reads
        assert len((await recent.after(JobQuery(), jobs[-1].change)).jobs) == 10
        assert store.reads == reads, "small ones take their place"
