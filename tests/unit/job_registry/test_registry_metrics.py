"""What the registry tells of its jobs."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from fanfold.model.job import JobSpec
from job_registry.counts import MAX_KINDS
from job_registry.jobs import Jobs
from job_registry.metrics import JobCollector
from job_registry.store.memory import MemoryJobStore
from job_registry.words import Open
from support.job_words import Clock, Producing, jobs_in
from support.scrapes import Scrape, scrape_of


def told(jobs: Jobs) -> Scrape:
    registry = CollectorRegistry()
    JobCollector(jobs, registry)
    return scrape_of(registry)


async def test_jobs_are_counted_by_kind_and_state_from_their_registration_to_their_end() -> None:
    async with jobs_in() as jobs:
        nothing = told(jobs)
        assert nothing.value("fanfold_registry_jobs_given_up_total", reason="producer_lost") == 0
        assert nothing.value("fanfold_registry_jobs_refused_total", limit="live_jobs") == 0
        first, second = Producing(jobs), Producing(jobs)
        await first.register("a")
        await second.register("b")
        await first.settle()
        scrape = told(jobs)
        assert scrape.value("fanfold_registry_jobs_registered_total", kind="test") == 2
        assert scrape.value("fanfold_registry_jobs", kind="test", state="running") == 1
        assert scrape.value("fanfold_registry_jobs_settled_total", kind="test", state="completed") == 1
        assert scrape.value("fanfold_registry_job_duration_seconds_count", kind="test") == 1
        assert scrape.value("fanfold_registry_producers", state="there") == 1


@pytest.mark.contract("C39")
async def test_kinds_beyond_those_that_are_told_apart_are_counted_together() -> None:
    async with jobs_in() as jobs:
        for number in range(MAX_KINDS + 3):
            await Producing(jobs).register(str(number), kind=f"kind-{number}")
        scrape = told(jobs)
        assert scrape.value("fanfold_registry_jobs", kind="other", state="running") == 3
        assert scrape.value("fanfold_registry_jobs_registered_total", kind="other") == 3
        assert scrape.value("fanfold_registry_jobs_registered_total", kind="kind-0") == 1


@pytest.mark.contract("C38", "C42")
async def test_producers_that_are_away_too_long_are_told_as_lost_and_how_long_jobs_wait_before() -> None:
    clock = Clock()
    async with jobs_in(clock=clock, producers={"grace": 60}) as jobs:
        producing = Producing(jobs)
        await producing.register()
        await producing.leave()
        clock.advance(45)
        scrape = told(jobs)
        assert scrape.value("fanfold_registry_producers", state="away") == 1
        assert scrape.value("fanfold_registry_longest_wait_seconds", on="producer") == 45
        clock.advance(15)
        await jobs.give_up_overdue()
        scrape = told(jobs)
        assert scrape.value("fanfold_registry_jobs_given_up_total", reason="producer_lost") == 1
        assert scrape.value("fanfold_registry_jobs_settled_total", kind="test", state="failed") == 1
        assert scrape.value("fanfold_registry_longest_wait_seconds", on="producer") == 0


@pytest.mark.contract("C38", "C42")
async def test_jobs_that_do_not_stop_in_time_are_told_apart_from_those() -> None:
    clock = Clock()
    async with jobs_in(clock=clock, producers={"stop_deadline": 30}) as jobs:
        producing = Producing(jobs)
        job = await producing.register()
        live = jobs.live(int(job.id.rpartition("-")[2]))
        assert live is not None
        await jobs.stop(live, "enough")
        clock.advance(20)
        assert told(jobs).value("fanfold_registry_longest_wait_seconds", on="stop") == 20
        assert told(jobs).value("fanfold_registry_jobs", kind="test", state="stopping") == 1
        clock.advance(10)
        await jobs.give_up_overdue()
        assert told(jobs).value("fanfold_registry_jobs_given_up_total", reason="not_stopped") == 1
        assert told(jobs).value("fanfold_registry_jobs_given_up_total", reason="producer_lost") == 0


@pytest.mark.contract("C39")
async def test_jobs_that_are_not_taken_are_counted_by_the_limit() -> None:
    async with jobs_in(limits={"live_jobs": 2, "live_jobs_per_owner": 1}) as jobs:
        await Producing(jobs).register("a")
        refused = Producing(jobs)
        refused.say(Open(JobSpec(kind="test"), "b"))
        await refused.failure()
        scrape = told(jobs)
        assert scrape.value("fanfold_registry_jobs_refused_total", limit="live_jobs_per_owner") == 1
        assert scrape.value("fanfold_registry_jobs_refused_total", limit="live_jobs") == 0
        assert scrape.value("fanfold_registry_jobs_limit") == 2


@pytest.mark.contract("C38")
async def test_a_job_that_two_registries_give_up_at_the_same_moment_is_counted_once() -> None:
    clock, store = Clock(), MemoryJobStore()
    async with jobs_in(store, clock, producers={"grace": 60}) as one:
        producing = Producing(one)
        await producing.register()
        await producing.leave()
        async with jobs_in(store, clock, producers={"grace": 60}) as other:
            clock.advance(61)
            await asyncio.gather(one.give_up_overdue(), other.give_up_overdue())
            for name, labels in {
                "fanfold_registry_jobs_settled_total": {"kind": "test", "state": "failed"},
                "fanfold_registry_job_duration_seconds_count": {"kind": "test"},
                "fanfold_registry_jobs_given_up_total": {"reason": "producer_lost"},
            }.items():
                assert sum(told(jobs).total(name, **labels) for jobs in (one, other)) == 1
