"""Jobs that are asked to stop: told to their producers, settled by them, or given up in time."""

from __future__ import annotations

import pytest

from fanfold.errors import NotFound
from fanfold.model.job import JobState
from job_registry.queries import Queries
from job_registry.states import UNASKED
from job_registry.store.memory import MemoryJobStore
from job_registry.words import Cancel
from support.job_words import ALICE, Clock, Producing, jobs_in
from support.produced import states


@pytest.mark.contract("C38", "C35")
async def test_a_stop_is_told_to_the_producer_whose_settlement_counts() -> None:
    async with jobs_in() as jobs:
        producing = Producing(jobs)
        job = await producing.register()
        queries = Queries(jobs)
        stopping = await queries.cancel(ALICE, job.id, "enough")
        assert (stopping.state, stopping.waiting_on) == (JobState.STOPPING, "its producer, to stop")
        assert (await queries.cancel(ALICE, job.id, "more than enough")).stop_reason == "enough"
        assert (await producing.heard(Cancel)).reason == "enough"
        done = await producing.settle(JobState.KILLED, "stopped by hand")
        assert (done.state, done.detail, done.stop_reason) == (JobState.KILLED, "stopped by hand", "enough")
        assert not producing.hears(Cancel)
        assert await queries.cancel(ALICE, job.id, "again") == done


@pytest.mark.contract("C38")
async def test_a_stop_without_a_reason_says_who_asked() -> None:
    async with jobs_in() as jobs:
        producing = Producing(jobs)
        job = await producing.register()
        assert (await Queries(jobs).cancel(ALICE, job.id, "")).stop_reason == "alice asked for it"


@pytest.mark.contract("C38", "F1")
async def test_a_stop_waits_for_a_producer_that_is_away_also_over_a_restart() -> None:
    store, clock = MemoryJobStore(), Clock()
    async with jobs_in(store, clock) as jobs:
        producing = Producing(jobs)
        job = await producing.register()
        await producing.leave()
        clock.advance(5)
        stopping = await Queries(jobs).cancel(ALICE, job.id, "enough")
        assert stopping.waiting_on == "its producer, which has been away for 5 s, to stop"
    async with jobs_in(store, clock) as jobs:
        for _ in range(2):  # each stream is told
            producing = Producing(jobs)
            assert (await producing.reattach(job.id)).job.state is JobState.STOPPING
            assert (await producing.heard(Cancel)).reason == "enough"
        assert (await producing.settle(JobState.KILLED)).state is JobState.KILLED


@pytest.mark.contract("C38", "F3")
async def test_a_job_that_does_not_stop_in_time_fails_and_names_what_may_be_orphaned() -> None:
    clock = Clock()
    async with jobs_in(clock=clock, producers={"grace": 60, "stop_deadline": 30}) as jobs:
        producing = Producing(jobs)
        job = await producing.register(holds="process 4711 on host-a")
        await Queries(jobs).cancel(ALICE, job.id, "enough")
        clock.advance(20)
        await producing.leave()
        producing = Producing(jobs)
        await producing.reattach(job.id)
        clock.advance(9.9)
        await jobs.give_up_overdue()
        assert (await states(jobs))[job.id] is JobState.STOPPING
        clock.advance(0.2)  # to come and go does not make it longer
        await jobs.give_up_overdue()
        failed = await Queries(jobs).get(ALICE, job.id)
        assert (failed.state, failed.stop_reason) == (JobState.FAILED, "enough")
        assert "30 s" in failed.detail
        assert failed.detail.endswith("may be orphaned: process 4711 on host-a")
        error = await producing.failure()
        assert isinstance(error, NotFound)
        assert error.reason == "GONE"


@pytest.mark.contract("C38")
async def test_the_deadline_of_a_stop_begins_when_its_producer_is_told() -> None:
    clock = Clock()
    async with jobs_in(clock=clock, producers={"grace": 60, "stop_deadline": 30}) as jobs:
        producing = Producing(jobs)
        job = await producing.register()
        await producing.leave()
        await Queries(jobs).cancel(ALICE, job.id, "enough")
        clock.advance(50)
        await jobs.give_up_overdue()
        back = Producing(jobs)
        await back.reattach(job.id)
        clock.advance(29)
        await jobs.give_up_overdue()
        assert (await back.settle(JobState.KILLED)).state is JobState.KILLED


@pytest.mark.contract("C35")
async def test_killed_is_only_what_was_asked_to_stop() -> None:
    async with jobs_in() as jobs:
        silent, wordy = Producing(jobs), Producing(jobs)
        await silent.register("a")
        await wordy.register("b")
        assert (await silent.settle(JobState.KILLED)).detail == UNASKED
        done = await wordy.settle(JobState.KILLED, "out of memory")
        assert (done.state, done.detail) == (JobState.FAILED, "out of memory")
