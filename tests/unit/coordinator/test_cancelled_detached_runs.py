"""Detached runs that are cancelled, or whose jobs are stopped: both end, with one reason (C31)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from fanfold.model.job import JobState
from fanfold.model.run import RunState
from fanfold.schema import SchemaValidator
from support.detached import detached, ended
from support.durable import DEADLINE, World, specs
from support.jobs import JobsInMemory
from support.mesh import until


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        validator = await stack.enter_async_context(SchemaValidator())
        async with asyncio.timeout(DEADLINE):
            yield World(validator, stack)


@pytest.fixture
def jobs() -> JobsInMemory:
    return JobsInMemory()


@pytest.mark.contract("C27", "C31", "C35", "C38")
async def test_a_run_that_is_cancelled_has_its_job_stopped_and_killed(world: World, jobs: JobsInMemory) -> None:
    one = await world.coordinator("one", jobs=jobs.of())
    run = await one.runs.start(detached(), specs("a", agent="wait"))
    live = one.runs.holding.get(run.run_id)
    assert live is not None
    live.cancel("enough")
    last = await ended(one, run.run_id)
    assert (last.state, last.reason) == (RunState.CANCELLED, "enough")
    job = jobs.only.job
    assert (job.state, job.stop_reason, job.detail) == (JobState.KILLED, "enough", "0/1 steps: enough")
    assert json.loads(jobs.only.result or b"") == {"outcomes": [None]}


@pytest.mark.contract("C27", "C31", "C36")
async def test_a_run_that_is_cancelled_while_it_is_registered_leaves_no_job_running(
    world: World, jobs: JobsInMemory
) -> None:
    one = await world.coordinator("one", jobs=jobs.of())
    jobs.answers = False
    asked = asyncio.create_task(one.runs.start(detached(), specs("a")))
    await until(lambda: bool(jobs.jobs), "the job is there")
    (live,) = one.runs.holding
    live.cancel("never mind")
    jobs.answers = True
    jobs.wake()
    run = await asked
    assert run.job_id == "parallel-1"
    assert (await ended(one, run.run_id)).state is RunState.CANCELLED
    assert (jobs.only.job.state, jobs.only.job.stop_reason) == (JobState.KILLED, "never mind")
    assert not world.agents.calls


@pytest.mark.contract("C27")
async def test_a_registry_that_does_not_answer_holds_up_no_cancel(world: World, jobs: JobsInMemory) -> None:
    one = await world.coordinator("one", jobs=jobs.of())
    jobs.answers = False
    asked = asyncio.create_task(one.runs.start(detached(), specs("a")))
    await until(lambda: bool(jobs.jobs), "the job is there")
    (live,) = one.runs.holding
    live.cancel("never mind")
    last = await ended(one, (await asked).run_id)
    assert (last.state, last.reason, last.job_id) == (RunState.CANCELLED, "never mind", "")
    assert not world.agents.calls


@pytest.mark.contract("C19", "C27", "C31")
async def test_a_job_whose_run_was_cancelled_as_its_coordinator_was_lost_is_killed_by_whoever_takes_it_over(
    world: World, jobs: JobsInMemory
) -> None:
    one = await world.coordinator("one", jobs=jobs.of())
    one.journal.is_cut_at = "set_job"
    asked = asyncio.create_task(one.runs.start(detached(), specs("a")))
    await until(lambda: one.journal.is_cut, "the job is there")
    kept = await world.shared.find_request("alice", "r1")
    assert kept is not None
    await world.shared.ask_to_cancel(kept.run.run_id, "never mind")
    two = await world.coordinator("two", jobs=jobs.of())
    last = await ended(two, kept.run.run_id)
    assert (last.state, last.reason, last.job_id) == (RunState.CANCELLED, "never mind", "parallel-1")
    assert jobs.only.job.state is JobState.KILLED
    assert not world.agents.calls
    asked.cancel()


@pytest.mark.contract("C31", "C38")
async def test_a_job_that_is_stopped_has_its_run_cancelled_with_the_reason(world: World, jobs: JobsInMemory) -> None:
    one = await world.coordinator("one", jobs=jobs.of())
    run = await one.runs.start(detached(), specs("a", agent="wait"))
    await jobs.cancel_job(run.job_id, "too dear")
    last = await ended(one, run.run_id)
    assert (last.state, last.reason) == (RunState.CANCELLED, "too dear")
    assert jobs.only.job.state is JobState.KILLED


@pytest.mark.contract("C31", "C38")
async def test_the_reason_that_the_registry_had_first_is_the_runs_too(world: World, jobs: JobsInMemory) -> None:
    one = await world.coordinator("one", jobs=jobs.of())
    run = await one.runs.start(detached(), specs("a", agent="wait"))
    live = one.runs.holding.get(run.run_id)
    assert live is not None
    asked = asyncio.create_task(jobs.cancel_job(run.job_id, "first"))
    await asyncio.sleep(0)
    live.cancel("second")
    await asked
    assert (await ended(one, run.run_id)).reason == "first"
    assert jobs.only.job.stop_reason == "first"


@pytest.mark.contract("C38")
@pytest.mark.parametrize(
    ("why", "told"),
    [
        ("GONE", "the job registry has given its job up"),
        ("NOT_FOUND", "the job registry knows nothing of its job, as after a restart of one that keeps jobs in memory"),
    ],
)
async def test_a_run_whose_job_the_registry_does_not_have_any_more_is_stopped(
    world: World, jobs: JobsInMemory, why: str, told: str
) -> None:
    jobs.why_gone = why
    one = await world.coordinator("one", jobs=jobs.of())
    run = await one.runs.start(detached(), specs("a", agent="wait"))
    jobs.jobs.clear()
    jobs.wake()
    last = await ended(one, run.run_id)
    assert (last.state, last.reason) == (RunState.CANCELLED, told)
