"""Streams of producers and the jobs that they open: visible once their work has started, and not before (C31)."""

from __future__ import annotations

from typing import Any

import pytest

from fanfold.background import background
from fanfold.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted, Unavailable
from fanfold.model.job import JobSpec, JobState
from fanfold.model.principal import Principal
from job_registry.queries import Queries
from job_registry.store.memory import MemoryJobStore
from job_registry.store.store import KeptJob, StoreFailed
from job_registry.words import Admitted, Chunk, Committed, Open, Output, Settled, Started, StartFailed
from support.job_words import ALICE, Clock, Producing, jobs_in
from support.mesh import until
from support.produced import BOB, SPEC, kept, states


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
