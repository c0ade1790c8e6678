"""Output on its way to the store: kept in order, bounded, and paid for with credit."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fanfold.errors import Unavailable
from fanfold.model.job import JobState
from job_registry.output import WHOLE_SECONDS
from job_registry.producing import CREDIT_BYTES
from job_registry.store.memory import MemoryJobStore
from job_registry.store.store import Moved, StoreFailed
from job_registry.words import Credit, Output, Settled
from support.job_stores import pieces_of
from support.job_words import Clock, Producing, jobs_in
from support.mesh import until
from support.produced import kept


@pytest.mark.contract("C37", "F16")
async def test_output_that_could_not_be_written_is_written_with_the_next() -> None:
    class Failing(MemoryJobStore):
        fails = True

        async def write_output(self, *args: Any) -> None:
            if self.fails:
                raise StoreFailed
            await super().write_output(*args)

    store = Failing()
    async with jobs_in(store) as jobs:
        producing = Producing(jobs)
        await producing.register()
        producing.write(b"first, ")
        producing.say(Output(progress="half"))
        await until(lambda: jobs.all_live[0].progress == "half", "all is taken")
        await jobs.output.keep()
        assert await pieces_of(store, 1) == []
        store.fails = False
        producing.write(b"second", 7)
        await until(lambda: jobs.output.received == 13, "all is taken")
        await jobs.output.keep()
        assert b"".join(data for _, data in await pieces_of(store, 1)) == b"first, second"
        assert (await kept(jobs, "test-1")).progress == "half"


@pytest.mark.contract("C37", "F16")
@pytest.mark.parametrize("fails", [True, False])
async def test_output_is_kept_of_a_job_that_settles_while_it_is_being_written(fails: bool) -> None:
    class Slow(MemoryJobStore):
        async def write_output(self, *args: Any) -> None:
            reached.set()
            await may_go_on.wait()
            if fails:
                raise StoreFailed
            await super().write_output(*args)

    reached, may_go_on, store = asyncio.Event(), asyncio.Event(), Slow()
    async with jobs_in(store) as jobs:
        producing = Producing(jobs)
        await producing.register()
        producing.write(b"first, ")
        await until(lambda: jobs.output.received == 7, "it is taken")
        writing = asyncio.create_task(jobs.output.keep())
        await reached.wait()
        producing.write(b"second", 7)
        assert (await producing.settle()).sources[0].total_bytes == 13
        may_go_on.set()
        await writing
        assert b"".join(data for _, data in await pieces_of(store, 1)) == b"first, second"


@pytest.mark.contract("C37", "F16")
async def test_a_write_that_succeeds_after_a_settlement_that_failed_does_not_stand_for_what_that_had() -> None:
    class Slow(MemoryJobStore):
        async def write_output(self, *args: Any) -> None:
            reached.set()
            await may_go_on.wait()
            await super().write_output(*args)

        async def move(self, *args: Any, **fields: Any) -> Moved:
            if not may_go_on.is_set():
                raise StoreFailed
            return await super().move(*args, **fields)

    reached, may_go_on, store = asyncio.Event(), asyncio.Event(), Slow()
    async with jobs_in(store) as jobs:
        producing = Producing(jobs)
        job = await producing.register()
        producing.write(b"first, ")
        await until(lambda: jobs.output.received == 7, "it is taken")
        writing = asyncio.create_task(jobs.output.keep())
        await reached.wait()
        producing.write(b"second", 7)
        producing.say(Settled(JobState.COMPLETED))
        assert isinstance(await producing.failure(), Unavailable)
        may_go_on.set()
        await writing
        again = Producing(jobs)
        await again.reattach(job.id)
        await again.settle()
        assert b"".join(data for _, data in await pieces_of(store, 1)) == b"first, second"


@pytest.mark.contract("C37", "F15")
async def test_little_writes_do_not_pile_up_in_the_store() -> None:
    async with jobs_in() as jobs:
        producing = Producing(jobs)
        await producing.register()
        most = 0
        for number in range(200):
            producing.write(b"x", number)
            await until(lambda: jobs.output.received == number + 1, "it is taken")  # noqa: B023
            await jobs.output.keep()
            most = max(most, len(await pieces_of(jobs.store, 1)))
        assert most <= 65
        assert b"".join(data for _, data in await pieces_of(jobs.store, 1)) == b"x" * 200


@pytest.mark.contract("C37", "F15", "F16")
@pytest.mark.parametrize("how", ["settled", "given up"])
async def test_the_output_of_a_job_that_ended_before_its_registry_was_killed_is_cut_by_the_next(how: str) -> None:
    now, clock = [datetime.now(UTC)], Clock()
    store = MemoryJobStore(lambda: now[0])
    bounds = {"live_bytes": 1000, "settled_bytes": 100}
    async with jobs_in(store, output=bounds) as killed, jobs_in(store, clock, output=bounds) as jobs:
        producing = Producing(killed)
        await producing.register()
        producing.write(b"x" * 1000)
        await until(lambda: killed.output.received == 1000, "it is taken")
        await killed.output.keep()
        if how == "settled":
            await producing.settle()
        else:
            await jobs.recent.begin()
            clock.advance(61)
            await jobs.give_up_overdue()
        await jobs.output.cut()
        assert await pieces_of(store, 1) == [(0, b"x" * 1000)]  # for those who follow it
        now[0] += timedelta(seconds=WHOLE_SECONDS + 1)
        await jobs.output.cut()
        assert await pieces_of(store, 1) == [(900, b"x" * 100)]
        (source,) = (await kept(jobs, "test-1")).sources
        assert (source.total_bytes, source.earliest_offset, source.lossy) == (1000, 900, True)


@pytest.mark.contract("C37", "F15")
async def test_all_jobs_together_hold_a_bounded_number_of_bytes() -> None:
    limits = {"live_bytes": 1000, "total_bytes": 3000, "settled_bytes": 100}
    async with jobs_in(output=limits) as jobs:
        producers = []
        for number in range(20):
            producing = Producing(jobs)
            await producing.register(f"r{number}")
            producing.write(b"x" * 1000)
            await until(lambda: jobs.output.received == 1000 * (number + 1), "output is taken")  # noqa: B023
            producers.append(producing)
        assert jobs.output.held == 3 * 1000 + 17 * 100
        assert jobs.output.held == sum(live.held.size for live in jobs.all_live if live.held)
        for producing in producers:
            await producing.settle()
        assert jobs.output.held == 0


@pytest.mark.contract("C37")
async def test_credit_comes_as_output_is_taken_whoever_reads() -> None:
    async with jobs_in() as jobs:
        producing = Producing(jobs)
        await producing.register()
        credit = (await producing.heard(Credit)).count
        sent = 0
        while sent < 5 * CREDIT_BYTES:
            while credit < 65_536:
                credit += (await producing.heard(Credit)).count
            producing.write(b"x" * 65_536, sent)
            sent, credit = sent + 65_536, credit - 65_536
        await until(lambda: jobs.output.received == sent, "all is taken")
        assert jobs.output.dropped == sent - jobs.config.output.live_bytes
