"""Producing jobs: what is said in which order, who holds a job, and what becomes of it when its producer is away.

The clock is the test's; nothing here waits for time to pass.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fanfold.background import background
from fanfold.errors import Aborted, DeadlineExceeded, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from fanfold.model.job import JobFilter, JobSpec, JobState
from fanfold.model.principal import Principal, Role
from job_registry.jobs import Jobs
from job_registry.output import WHOLE_SECONDS
from job_registry.producing import CREDIT_BYTES, Openings
from job_registry.queries import Queries
from job_registry.states import LOST, UNASKED
from job_registry.store.memory import MemoryJobStore
from job_registry.store.store import JobQuery, KeptJob, Moved, StoreFailed
from job_registry.words import (
    Admitted,
    Cancel,
    Chunk,
    Committed,
    Credit,
    Kept,
    Open,
    Output,
    Reattach,
    Settled,
    Started,
    StartFailed,
)
from support.job_stores import pieces_of
from support.job_words import ALICE, Clock, Producing, jobs_in
from support.mesh import until

BOB = Principal("bob", frozenset({Role.CALLER}))
SPEC = JobSpec(kind="test", sources=("out",))


async def states(jobs: Jobs) -> dict[str, JobState]:
    return {job.id: job.state for job in await jobs.store.list_jobs(JobQuery())}


async def kept(jobs: Jobs, job_id: str) -> KeptJob:
    found = await jobs.find(job_id)
    assert found is not None
    return found


@pytest.mark.contract("C32")
async def test_a_job_is_visible_once_its_work_has_started_and_not_before() -> None:
    async with jobs_in() as jobs:
        producing = Producing(jobs)
        producing.say(Open(SPEC, "r"))
        assert (await producing.heard(Admitted)).job_id == "test-1"
        assert await states(jobs) == {}
        producing.say(Started(holds="process 7"))
        committed = await producing.heard(Committed)
        assert (committed.job.id, committed.job.state, committed.epoch) == ("test-1", JobState.RUNNING, 1)
        assert (committed.job.owner, committed.job.waiting_on) == ("alice", "")
        assert await states(jobs) == {"test-1": JobState.RUNNING}
        assert (await kept(jobs, "test-1")).holds == "process 7"


@pytest.mark.contract("C32")
@pytest.mark.parametrize("how", ["says so", "breaks off"])
async def test_a_start_that_fails_registers_nothing_and_skips_its_number(how: str) -> None:
    async with jobs_in() as jobs:
        producing = Producing(jobs)
        producing.say(Open(SPEC, "r"))
        await producing.heard(Admitted)
        if how == "says so":
            producing.say(StartFailed("no disk"))
        else:
            await producing.leave()
        await until(lambda: not producing.stream.is_there, "the stream ends")
        assert await states(jobs) == {}
        assert (await Producing(jobs).register()).id == "test-2"


@pytest.mark.contract("C32")
async def test_a_start_that_never_comes_registers_nothing() -> None:
    async with jobs_in(producers={"start_deadline": 0.2}) as jobs:
        producing = Producing(jobs)
        producing.say(Open(SPEC, "r"))
        await producing.heard(Admitted)
        assert isinstance(await producing.failure(), DeadlineExceeded)
        assert await states(jobs) == {}


@pytest.mark.contract("C32", "C39")
async def test_a_refused_preflight_burns_no_number() -> None:
    async with jobs_in(limits={"label_length": 8, "live_jobs_per_owner": 1}) as jobs:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"kind": "Test"}, "kebab-case"),
            ({"kind": "test-"}, "kebab-case"),
            ({"kind": "x" * 64}, "63"),
            ({"label": "x" * 9}, "8"),
            ({"label": "a\nb"}, "line breaks"),
            ({"parent": "x" * 9}, "8"),
            ({"sources": ("out", "out")}, "repeated"),
            ({"sources": ("a b",)}, "64"),
            ({"sources": tuple("abcdefghi")}, "at most 8"),
        ]
        for fields, words in wrong:
            producing = Producing(jobs)
            producing.say(Open(JobSpec(**{"kind": "test", **fields}), "r"))
            error = await producing.failure()
            assert isinstance(error, InvalidArgument)
            assert words in error.message
        nameless = Producing(jobs)
        nameless.say(Open(SPEC, ""))
        assert "open.request_id" in str(await nameless.failure())
        await Producing(jobs).register("first")
        refused = Producing(jobs)
        refused.say(Open(SPEC, "second"))
        error = await refused.failure()
        assert isinstance(error, ResourceExhausted)
        assert (error.reason, "live_jobs_per_owner is 1" in error.message) == ("TOO_MANY_JOBS", True)
        assert (await Producing(jobs, BOB).register("first")).id == "test-2"


@pytest.mark.contract("C39")
async def test_a_principal_and_those_nested_in_it_share_a_limit_which_settled_jobs_leave() -> None:
    async with jobs_in(limits={"live_jobs_per_owner": 2}) as jobs:
        first = Producing(jobs)
        await first.register("a")
        session = Principal("alice/s1", ALICE.roles)
        await Producing(jobs, session).register("b")
        refused = Producing(jobs, Principal("alice/s2", ALICE.roles))
        refused.say(Open(SPEC, "c"))
        assert "alice has" in str(await refused.failure())
        await first.settle()
        assert (await Producing(jobs, session).register("c")).id == "test-3"


@pytest.mark.contract("C39")
async def test_jobs_in_all_are_bounded() -> None:
    async with jobs_in(limits={"live_jobs": 1}) as jobs:
        await Producing(jobs).register()
        refused = Producing(jobs, BOB)
        refused.say(Open(SPEC, "r"))
        assert "the limit live_jobs is 1" in str(await refused.failure())


@pytest.mark.contract("C32", "C44")
async def test_who_misses_the_answer_asks_again_and_gets_the_same_job() -> None:
    async with jobs_in() as jobs:
        first = Producing(jobs)
        job = await first.register("r")
        await first.leave()
        again = Producing(jobs)
        again.say(Open(SPEC, "r"))
        assert (await again.heard(Committed)).job.id == job.id
        assert not again.hears(Admitted)
        again.write(b"on it goes")
        await again.settle()
        assert await states(jobs) == {job.id: JobState.COMPLETED}


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
    class Slow(MemoryJobStore):
        async def attach(self, *args: Any) -> KeptJob:
            reached.set()
            await may_go_on.wait()
            return await super().attach(*args)

    reached, may_go_on = asyncio.Event(), asyncio.Event()
    async with jobs_in(Slow()) as jobs:
        first, second = Producing(jobs), Producing(jobs)
        job = await first.register()
        second.say(Reattach(job.id, 2))
        await reached.wait()
        first.say(Settled(JobState.FAILED, "late"))
        await asyncio.sleep(0.05)  # so that it waits for its turn
        may_go_on.set()
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
    class Slow(MemoryJobStore):
        async def attach(self, *args: Any) -> KeptJob:
            reached.set()
            await may_go_on.wait()
            return await super().attach(*args)

    reached, may_go_on = asyncio.Event(), asyncio.Event()
    async with jobs_in(Slow()) as jobs:
        first, second = Producing(jobs), Producing(jobs)
        job = await first.register()
        second.say(Reattach(job.id, 2))
        await reached.wait()
        await second.leave()
        may_go_on.set()
        assert (await first.settle()).state is JobState.COMPLETED


@pytest.mark.contract("C32", "F5")
async def test_a_stream_that_comes_late_to_the_store_takes_no_job_from_the_registry_where_its_producer_is_by_now() -> (
    None
):
    class Slow(MemoryJobStore):
        async def attach(self, *args: Any) -> KeptJob:
            reached.set()
            await may_go_on.wait()
            return await super().attach(*args)

    store, reached, may_go_on = Slow(), asyncio.Event(), asyncio.Event()
    async with jobs_in(store) as jobs:
        first, late, again = Producing(jobs), Producing(jobs), Producing(jobs)
        job = await first.register()
        late.say(Reattach(job.id, 1))
        await reached.wait()
        elsewhere = await MemoryJobStore.attach(store, 1, 1, "elsewhere", 1)
        may_go_on.set()
        error = await late.failure()
        assert isinstance(error, Unavailable)
        assert error.reason == "OVERTAKEN"
        assert await kept(jobs, job.id) == elsewhere
        assert isinstance(await first.failure(), Aborted)
        await again.reattach(job.id)
        assert (await kept(jobs, job.id)).hold == elsewhere.hold + 1


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


@pytest.mark.contract("F3", "F6")
async def test_a_registration_that_failed_but_took_effect_is_held_to_its_grace() -> None:
    class Doubtful(MemoryJobStore):
        async def add(self, *args: Any) -> KeptJob:
            await super().add(*args)
            raise StoreFailed

    clock = Clock()
    async with jobs_in(Doubtful(), clock) as jobs, background(jobs.recent.follow()):
        producing = Producing(jobs)
        producing.say(Open(SPEC, "r"))
        await producing.heard(Admitted)
        producing.say(Started())
        assert isinstance(await producing.failure(), Unavailable)
        await until(lambda: len(jobs.all_live) == 1, "the job is found")
        clock.advance(61)
        await jobs.give_up_overdue()
        assert await states(jobs) == {"test-1": JobState.FAILED}


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


@pytest.mark.parametrize(
    ("word", "field"),
    [
        (Output([Chunk("err", 0, b"x")]), "output.chunks[0].source"),
        (Output([Chunk("out", 2**63 - 1, b"x")]), "output.chunks[0].offset"),
        (Started(), "started comes out of turn"),
        (Open(SPEC, "again"), "open comes out of turn"),
    ],
)
async def test_what_is_wrong_ends_the_stream_and_not_the_job(word: Any, field: str) -> None:
    async with jobs_in() as jobs:
        producing = Producing(jobs)
        job = await producing.register()
        producing.say(word)
        error = await producing.failure()
        assert isinstance(error, InvalidArgument)
        assert field in error.message
        again = Producing(jobs)
        await again.reattach(job.id)
        assert (await again.settle()).state is JobState.COMPLETED


@pytest.mark.parametrize("word", [Started(), StartFailed(), Output(), Settled(JobState.COMPLETED)])
async def test_a_stream_begins_with_its_job(word: Any) -> None:
    async with jobs_in() as jobs:
        producing = Producing(jobs)
        producing.say(word)
        assert "out of turn" in str(await producing.failure())


async def test_words_are_kept_on_one_line_and_cut_to_the_limit() -> None:
    async with jobs_in() as jobs:
        producing = Producing(jobs)
        job = await producing.register()
        producing.say(Output(progress="one\r\ntwo\x07" + "x" * 5000))
        await until(lambda: bool(jobs.all_live) and jobs.all_live[0].progress != "", "progress is told")
        progress = (await Queries(jobs).get(ALICE, job.id)).progress
        assert progress.startswith("one two xxx")
        assert (len(progress), progress[-1]) == (4096, "…")
        done = await producing.settle(JobState.FAILED, "a\nb" + "y" * 5000)
        assert (len(done.detail), done.detail[:4], done.progress) == (4096, "a by", progress)
