"""Settlements and results: told as one when they are kept, bounded, and whole."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fanfold.errors import ResourceExhausted, Unavailable
from fanfold.model.job import JobFilter, JobState
from job_registry.queries import Queries
from job_registry.store.memory import MemoryJobStore
from job_registry.store.store import Moved, StoreFailed
from job_registry.words import Committed, Kept, Open, Reattach, Settled
from support.job_words import ALICE, Clock, Producing, jobs_in
from support.produced import BOB, SPEC, states


@pytest.mark.contract("C35", "C36")
async def test_who_misses_that_the_settlement_is_kept_is_told_again() -> None:
    async with jobs_in() as jobs:
        producing = Producing(jobs)
        job = await producing.register()
        done = await producing.settle(JobState.FAILED, "it broke", b"partial")
        for word in (Reattach(job.id), Open(SPEC, "r")):
            again = Producing(jobs)
            again.say(word)
            assert (await again.heard(Committed)).job == done
            assert (await again.heard(Kept)).job == done
        assert done.has_result


@pytest.mark.contract("C35", "F6")
async def test_a_settlement_takes_effect_also_when_its_stream_breaks_meanwhile() -> None:
    class Slow(MemoryJobStore):
        async def move(self, *args: Any, **fields: Any) -> Moved:
            reached.set()
            await may_go_on.wait()
            return await super().move(*args, **fields)

    reached, may_go_on = asyncio.Event(), asyncio.Event()
    async with jobs_in(Slow()) as jobs:
        producing = Producing(jobs)
        job = await producing.register()
        producing.say(Settled(JobState.COMPLETED, "done"))
        await reached.wait()
        await producing.leave()
        again = Producing(jobs)
        again.say(Reattach(job.id))
        may_go_on.set()
        assert (await again.heard(Kept)).job.detail == "done"
        assert not jobs.all_live


@pytest.mark.contract("C35", "F23")
async def test_a_settlement_that_the_store_has_is_told_as_one_at_once() -> None:
    class Late(MemoryJobStore):
        async def move(self, *args: Any, **fields: Any) -> Moved:
            moved = await super().move(*args, **fields)
            reached.set()
            await may_go_on.wait()
            return moved

    reached, may_go_on = asyncio.Event(), asyncio.Event()
    async with jobs_in(Late()) as jobs:
        producing, queries = Producing(jobs), Queries(jobs)
        job = await producing.register()
        producing.say(Settled(JobState.COMPLETED, "done"))
        await reached.wait()
        changes = queries.watch(ALICE, JobFilter(states=[JobState.COMPLETED]), 0)
        (told,), _ = await anext(changes)
        assert told == await queries.get(ALICE, job.id)
        assert (told.state, told.detail) == (JobState.COMPLETED, "done")
        may_go_on.set()
        await producing.heard(Kept)
        await changes.aclose()


@pytest.mark.contract("F6")
async def test_what_cannot_be_kept_is_not_told_and_can_be_told_again() -> None:
    class Failing(MemoryJobStore):
        fails = False

        async def move(self, *args: Any, **fields: Any) -> Moved:
            if self.fails:
                raise StoreFailed
            return await super().move(*args, **fields)

    store, clock = Failing(), Clock()
    async with jobs_in(store, clock) as jobs:
        producing = Producing(jobs)
        job = await producing.register()
        producing.write(b"output")
        store.fails = True
        with pytest.raises(StoreFailed):
            await Queries(jobs).cancel(ALICE, job.id, "enough")
        assert (await states(jobs))[job.id] is JobState.RUNNING
        producing.say(Settled(JobState.COMPLETED))
        assert isinstance(await producing.failure(), Unavailable)
        clock.advance(61)
        await jobs.give_up_overdue()
        assert (await states(jobs))[job.id] is JobState.RUNNING
        store.fails = False
        again = Producing(jobs)
        await again.reattach(job.id)
        assert (await again.settle()).sources[0].total_bytes == 6


@pytest.mark.contract("C37", "C39", "F11")
async def test_a_result_that_is_too_large_settles_nothing_and_names_the_limit() -> None:
    async with jobs_in(limits={"result_bytes": 10}) as jobs:
        producing = Producing(jobs)
        job = await producing.register()
        producing.say(Settled(JobState.COMPLETED, result=b"12345", more=True))
        producing.say(Settled(JobState.COMPLETED, result=b"67890!"))
        error = await producing.failure()
        assert isinstance(error, ResourceExhausted)
        assert (error.reason, "result_bytes is 10" in error.message) == ("RESULT_TOO_LARGE", True)
        again = Producing(jobs)
        assert (await again.reattach(job.id)).max_result_bytes == 10
        again.say(Settled(JobState.COMPLETED, result=b"12345", more=True))
        done = await again.settle(JobState.COMPLETED, "cut", b"67890")
        assert (done.detail, await jobs.store.result_part(1, 0)) == ("cut", b"1234567890")


@pytest.mark.contract("C39", "F15")
async def test_results_under_way_are_bounded_for_each_principal() -> None:
    async with jobs_in(limits={"result_bytes": 100}) as jobs:
        half = [Producing(jobs) for _ in range(5)]
        for number, producing in enumerate(half):
            await producing.register(f"r{number}")
            producing.say(Settled(JobState.COMPLETED, result=b"x" * 90, more=True))
        error = await half[4].failure()
        assert isinstance(error, ResourceExhausted)
        assert error.reason == "RESULTS_UNDER_WAY"
        assert "at most 400 bytes" in error.message
        bob = Producing(jobs, BOB)
        await bob.register("b")
        assert (await bob.settle(result=b"y" * 100)).has_result
        half[0].say(Settled(JobState.COMPLETED, result=b"x" * 10))
        await half[0].heard(Kept)
        await half[1].leave()
        again = Producing(jobs)
        await again.reattach("test-5")
        assert (await again.settle(result=b"x" * 100)).has_result


@pytest.mark.contract("C37")
async def test_half_a_result_is_no_settlement() -> None:
    async with jobs_in() as jobs:
        producing = Producing(jobs)
        job = await producing.register()
        producing.say(Settled(JobState.COMPLETED, result=b"half", more=True))
        await producing.leave()
        assert (await states(jobs))[job.id] is JobState.RUNNING
