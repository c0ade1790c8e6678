"""How long a job waits for a producer that is away, also over outages and restarts of its registry."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fanfold.errors import NotFound
from fanfold.model.job import JobState
from job_registry.queries import Queries
from job_registry.states import LOST
from job_registry.store.memory import MemoryJobStore
from job_registry.store.store import KeptJob
from job_registry.words import Admitted, Open, Reattach, Started
from support.job_words import ALICE, Clock, Producing, jobs_in
from support.mesh import until
from support.produced import SPEC, states


@pytest.mark.contract("C38", "F3")
async def test_a_producer_that_stays_away_beyond_the_grace_has_lost_its_job() -> None:
    clock = Clock()
    async with jobs_in(clock=clock, producers={"grace": 60}) as jobs:
        producing = Producing(jobs)
        job = await producing.register()
        clock.advance(1000)
        await jobs.give_up_overdue()
        assert (await states(jobs))[job.id] is JobState.RUNNING
        await producing.leave()
        clock.advance(12)
        assert (await Queries(jobs).get(ALICE, job.id)).waiting_on == "its producer, which has been away for 12 s"
        clock.advance(47.9)
        await jobs.give_up_overdue()
        assert (await states(jobs))[job.id] is JobState.RUNNING
        clock.advance(0.2)
        await jobs.give_up_overdue()
        lost = await Queries(jobs).get(ALICE, job.id)
        assert (lost.state, lost.detail, lost.waiting_on) == (JobState.FAILED, LOST, "")
        for word in (Reattach(job.id, 9), Open(SPEC, "r")):
            late = Producing(jobs)
            late.say(word)
            error = await late.failure()
            assert isinstance(error, NotFound)
            assert error.reason == "GONE"


@pytest.mark.contract("C38")
async def test_a_producer_that_comes_back_in_time_goes_on_and_has_the_whole_grace_again() -> None:
    clock = Clock()
    async with jobs_in(clock=clock, producers={"grace": 60}) as jobs:
        producing = Producing(jobs)
        job = await producing.register()
        for _ in range(3):
            await producing.leave()
            clock.advance(59)
            await jobs.give_up_overdue()
            producing = Producing(jobs)
            await producing.reattach(job.id)
        assert (await producing.settle()).state is JobState.COMPLETED


@pytest.mark.contract("C38")
async def test_no_job_is_given_up_after_an_outage_of_the_store_before_its_producer_has_had_the_grace_again() -> None:
    clock = Clock()
    async with jobs_in(clock=clock, producers={"grace": 60}, lease=10) as jobs:
        producing = Producing(jobs)
        job = await producing.register()
        await producing.leave()
        clock.advance(100)  # the outage, in which no producer could come back
        await jobs.give_up_overdue()
        assert (await states(jobs))[job.id] is JobState.RUNNING
        for expected in (JobState.RUNNING, JobState.FAILED):
            for _ in range(6):
                await jobs.renew()
                clock.advance(9.9)
            await jobs.give_up_overdue()
            assert (await states(jobs))[job.id] is expected


@pytest.mark.contract("C38")
async def test_a_restart_gives_every_job_the_grace_again() -> None:
    store, clock = MemoryJobStore(), Clock()
    async with jobs_in(store, clock, producers={"grace": 60}) as jobs:
        producing = Producing(jobs)
        job = await producing.register()
        producing.write(b"kept")
        await until(lambda: jobs.output.received == 4, "output is there")
    clock.advance(3600)
    async with jobs_in(store, clock, producers={"grace": 60}) as jobs:
        clock.advance(59)
        await jobs.give_up_overdue()
        again = Producing(jobs)
        committed = await again.reattach(job.id)
        assert [(it.name, it.total_bytes) for it in committed.job.sources] == [("out", 4)]
        await again.leave()
        clock.advance(61)
        await jobs.give_up_overdue()
        assert (await states(jobs))[job.id] is JobState.FAILED


@pytest.mark.contract("F3", "F6")
async def test_a_job_whose_producer_breaks_off_while_it_is_committed_is_given_up_in_time() -> None:
    class Slow(MemoryJobStore):
        async def add(self, *args: Any) -> KeptJob:
            reached.set()
            await may_go_on.wait()
            return await super().add(*args)

    reached, may_go_on, clock = asyncio.Event(), asyncio.Event(), Clock()
    async with jobs_in(Slow(), clock) as jobs:
        producing = Producing(jobs)
        producing.say(Open(SPEC, "r"))
        await producing.heard(Admitted)
        producing.say(Started())
        await reached.wait()
        await producing.leave()
        may_go_on.set()
        await until(lambda: len(jobs.all_live) == 1, "the job is committed")
        clock.advance(61)
        await jobs.give_up_overdue()
        assert await states(jobs) == {"test-1": JobState.FAILED}
