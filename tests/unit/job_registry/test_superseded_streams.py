"""Of several streams that open a job the newest holds it, and the others write nothing any more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fanfold.errors import Aborted, NotFound, Unavailable
from fanfold.model.job import JobSpec, JobState
from fanfold.model.principal import Principal, Role
from job_registry.producing import Openings
from job_registry.store.memory import MemoryJobStore
from job_registry.store.store import KeptJob, StoreFailed
from job_registry.words import Admitted, Committed, Open, Reattach, Settled, Started
from support.job_words import Producing, jobs_in
from support.mesh import until
from support.produced import BOB, SPEC, kept, states


class SlowToAttach(MemoryJobStore):
    """Attaches once it may; `reached` tells that it was asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def attach(self, *args: Any) -> KeptJob:
        self.reached.set()
        await self.may_go_on.wait()
        return await super().attach(*args)


@pytest.mark.contract("C32")
async def test_a_stream_that_opens_a_request_again_ends_the_one_before() -> None:
    async with jobs_in() as jobs:
        openings = Openings()
        first, second = Producing(jobs, openings=openings), Producing(jobs, openings=openings)
        first.say(Open(SPEC, "r"))
        await first.heard(Admitted)
        second.say(Open(SPEC, "r"))
        assert (await second.heard(Admitted)).job_id == "test-2"
        error = await first.failure()
        assert isinstance(error, Aborted)
        assert error.reason == "SUPERSEDED"
        second.say(Started())
        assert (await second.heard(Committed)).job.id == "test-2"


@pytest.mark.contract("C33", "C34")
async def test_nobody_takes_an_open_job_over_by_opening_its_request_at_the_same_time() -> None:
    async with jobs_in(open_jobs=True) as jobs:
        openings, spec = Openings(), JobSpec(kind="test", sources=("out",), unowned=True)
        alice, bob = Producing(jobs, openings=openings), Producing(jobs, BOB, openings)
        alice.say(Open(spec, "r"))
        await alice.heard(Admitted)
        bob.say(Open(spec, "r"))
        await bob.heard(Admitted)
        alice.say(Started())
        job = (await alice.heard(Committed)).job
        bob.say(Started())
        assert isinstance(await bob.failure(), NotFound)
        assert (await alice.settle()).id == job.id
        assert await states(jobs) == {job.id: JobState.COMPLETED}


@pytest.mark.contract("C32", "F5")
async def test_of_two_coordinators_that_open_a_request_at_the_same_time_the_newer_one_holds_the_job() -> None:
    async with jobs_in() as jobs:
        openings = Openings()
        old, new = (
            Producing(jobs, Principal(name, frozenset({Role.COORDINATOR})), openings) for name in ("c-1", "c-2")
        )
        for producing, epoch in ((old, 1), (new, 2)):
            producing.say(Open(SPEC, "run", on_behalf_of="alice", epoch=epoch))
            await producing.heard(Admitted)
        new.say(Started())
        job = (await new.heard(Committed)).job
        old.say(Started())
        error = await old.failure()
        assert isinstance(error, Aborted)
        assert error.reason == "STALE_EPOCH"
        assert (await new.settle()).id == job.id


@pytest.mark.contract("C32", "C38")
async def test_the_newest_epoch_holds_the_job() -> None:
    async with jobs_in() as jobs:
        first = Producing(jobs)
        job = await first.register(epoch=3)
        second = Producing(jobs)
        assert (await second.reattach(job.id, 3)).epoch == 3
        error = await first.failure()
        assert isinstance(error, Aborted)
        assert error.reason == "SUPERSEDED"
        third = Producing(jobs)
        assert (await third.reattach(job.id, 5)).epoch == 5
        assert isinstance(await second.failure(), Aborted)
        stale = Producing(jobs)
        stale.say(Reattach(job.id, 4))
        error = await stale.failure()
        assert isinstance(error, Aborted)
        assert error.reason == "STALE_EPOCH"
        by_request = Producing(jobs)
        by_request.say(Open(SPEC, "r", epoch=4))
        assert isinstance(await by_request.failure(), Aborted)
        assert (await kept(jobs, job.id)).epoch == 5
        await third.settle()
        assert await states(jobs) == {job.id: JobState.COMPLETED}


async def test_a_superseded_stream_writes_nothing_any_more() -> None:
    async with jobs_in() as jobs:
        first = Producing(jobs)
        job = await first.register()
        second = Producing(jobs)
        await second.reattach(job.id)
        first.write(b"late")
        first.say(Settled(JobState.FAILED, "late"))
        assert isinstance(await first.failure(), Aborted)
        second.write(b"right")
        done = await second.settle()
        assert (done.state, done.sources[0].total_bytes) == (JobState.COMPLETED, 5)


@pytest.mark.contract("C32", "C35")
async def test_whoever_is_superseded_while_it_settles_settles_nothing() -> None:
    store = SlowToAttach()
    async with jobs_in(store) as jobs:
        first, second = Producing(jobs), Producing(jobs)
        job = await first.register()
        second.say(Reattach(job.id, 2))
        await store.reached.wait()
        first.say(Settled(JobState.FAILED, "late"))
        await asyncio.sleep(0.05)  # so that it waits for its turn
        store.may_go_on.set()
        await second.heard(Committed)
        assert isinstance(await first.failure(), Aborted)
        assert (await states(jobs))[job.id] is JobState.RUNNING
        assert (await second.settle()).state is JobState.COMPLETED


async def test_what_a_stream_says_after_its_end_is_not_heard() -> None:
    async with jobs_in() as jobs:
        producing = Producing(jobs)
        await producing.register()
        producing.write(b"late")
        producing.stream.end(Aborted())
        assert isinstance(await producing.failure(), Aborted)
        assert jobs.output.received == 0


async def test_a_stream_that_breaks_while_it_takes_a_job_over_leaves_it_where_it_is() -> None:
    store = SlowToAttach()
    async with jobs_in(store) as jobs:
        first, second = Producing(jobs), Producing(jobs)
        job = await first.register()
        second.say(Reattach(job.id, 2))
        await store.reached.wait()
        await second.leave()
        store.may_go_on.set()
        assert (await first.settle()).state is JobState.COMPLETED


@pytest.mark.contract("C32", "F5")
async def test_a_stream_that_comes_late_to_the_store_takes_no_job_from_the_registry_where_its_producer_is_by_now() -> (
    None
):
    store = SlowToAttach()
    async with jobs_in(store) as jobs:
        first, late, again = Producing(jobs), Producing(jobs), Producing(jobs)
        job = await first.register()
        late.say(Reattach(job.id, 1))
        await store.reached.wait()
        elsewhere = await MemoryJobStore.attach(store, 1, 1, "elsewhere", 1)
        store.may_go_on.set()
        error = await late.failure()
        assert isinstance(error, Unavailable)
        assert error.reason == "OVERTAKEN"
        assert await kept(jobs, job.id) == elsewhere
        assert isinstance(await first.failure(), Aborted)
        await again.reattach(job.id)
        assert (await kept(jobs, job.id)).hold == elsewhere.hold + 1


@pytest.mark.contract("C32", "F5")
async def test_a_hold_that_was_taken_unknown_to_the_registry_is_not_given_to_a_newer_epoch_as_its_own() -> None:
    class Silent(MemoryJobStore):
        async def attach(self, *args: Any) -> KeptJob:
            kept = await super().attach(*args)
            if not failed:
                failed.append(kept)
                raise StoreFailed()
            return kept

    failed: list[KeptJob] = []
    async with jobs_in(Silent()) as jobs:
        first, unknown, newer, again, old = (Producing(jobs) for _ in range(5))
        job = await first.register()
        unknown.say(Open(SPEC, "r", epoch=2))
        assert isinstance(await unknown.failure(), StoreFailed)
        newer.say(Open(SPEC, "r", epoch=3))
        error = await newer.failure()
        assert isinstance(error, Unavailable)
        assert error.reason == "OVERTAKEN"
        assert (await again.reattach(job.id, 3)).epoch == 3
        old.say(Reattach(job.id, 2))
        error = await old.failure()
        assert isinstance(error, Aborted)
        assert error.reason == "STALE_EPOCH"
        assert (await again.settle()).state is JobState.COMPLETED


@pytest.mark.contract("C32", "F5")
async def test_a_stream_that_broke_while_it_waited_for_its_turn_takes_no_job_over() -> None:
    class Slow(MemoryJobStore):
        async def attach(self, *args: Any) -> KeptJob:
            asked.append(args)
            await may_go_on.wait()
            return await super().attach(*args)

    asked: list[Any] = []
    may_go_on = asyncio.Event()
    async with jobs_in(Slow()) as jobs:
        first, second, third = Producing(jobs), Producing(jobs), Producing(jobs)
        job = await first.register()
        second.say(Reattach(job.id, 1))
        await until(lambda: len(asked) == 1, "it takes the job over")
        third.say(Reattach(job.id, 1))
        await asyncio.sleep(0.05)  # so that it waits for its turn
        await third.leave()
        may_go_on.set()
        await second.heard(Committed)
        assert (await second.settle()).state is JobState.COMPLETED
        assert len(asked) == 1
