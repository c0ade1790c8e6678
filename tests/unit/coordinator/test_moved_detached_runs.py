"""Detached runs whose coordinator or registry goes away: whoever goes on has the same job (C31, C19)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from coordinator.journal.journal import JournalFailed
from fanfold.errors import Unavailable
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


@pytest.mark.contract("C42", "C31")
async def test_a_run_goes_on_without_the_registry_and_waits_for_it_at_its_end(world: World, jobs: JobsInMemory) -> None:
    one = await world.coordinator("one", jobs=jobs.of())
    run = await one.runs.start(detached(), specs("a", "b"))
    jobs.leave()
    live = one.runs.holding.get(run.run_id)
    assert live is not None
    await until(lambda: live.view().waiting_on == "the job registry", "the run waits for the registry")
    assert live.view().steps.succeeded == 2
    live.cancel("too late")
    jobs.come_back()
    assert (await ended(one, run.run_id)).state is RunState.COMPLETED
    assert jobs.only.job.state is JobState.COMPLETED


@pytest.mark.contract("C19", "C31", "C37")
async def test_another_coordinator_goes_on_with_the_job_and_tells_no_line_twice(
    world: World, jobs: JobsInMemory
) -> None:
    one, two = [await world.coordinator(name, jobs=jobs.of()) for name in ("one", "two")]
    run = await one.runs.start(detached(), [*specs("a", "b"), *specs("x", "y", "z", agent="wait")[2:]])
    await until(lambda: jobs.only.log.count(b"\n") == 2, "two lines are told")
    await one.runs.holding.hand_over()
    await until(lambda: two.runs.holding.get(run.run_id) is not None, "the run is taken over")
    assert not jobs.only.job.state.is_settled
    world.agents.gate.set()
    assert (await ended(two, run.run_id)).state is RunState.COMPLETED
    assert jobs.only.epoch == 2
    assert sorted(line.split()[1] for line in jobs.only.log.decode().splitlines()) == ["t0:", "t1:", "t2:"]
    assert len(json.loads(jobs.only.result or b"")["outcomes"]) == 3


@pytest.mark.contract("C19", "C31", "F6")
async def test_a_run_that_was_registered_and_then_lost_its_coordinator_is_the_same_job(
    world: World, jobs: JobsInMemory
) -> None:
    one = await world.coordinator("one", jobs=jobs.of())
    one.journal.is_cut_at = "set_job"  # the job's id is not in the run's row, and never will be by this coordinator
    asked = asyncio.create_task(one.runs.start(detached(), specs("a")))
    await until(lambda: one.journal.is_cut, "the job is registered")
    assert jobs.only.epoch == 1
    two = await world.coordinator("two", jobs=jobs.of())
    await until(lambda: jobs.only.epoch == 2, "the run is taken over")
    run = await two.runs.start(detached(), specs("a"))
    assert run.job_id == "parallel-1"
    assert (await ended(two, run.run_id)).state is RunState.COMPLETED
    assert len(jobs.jobs) == 1
    assert world.agents.calls == {"a": 1}
    with pytest.raises((Unavailable, JournalFailed)):
        await asked


@pytest.mark.contract("C19", "C31")
async def test_a_run_that_was_accepted_and_not_registered_is_registered_by_whoever_takes_it_over(
    world: World, jobs: JobsInMemory
) -> None:
    one = await world.coordinator("one", jobs=jobs.of())
    gate = asyncio.Event()
    open_job = jobs.open_job

    async def held_up(*arguments: object, **named: object) -> object:
        await gate.wait()
        return await open_job(*arguments, **named)  # type: ignore[arg-type]

    jobs.open_job = held_up  # type: ignore[method-assign,assignment]
    asked = asyncio.create_task(one.runs.start(detached(), specs("a")))
    await until(lambda: any(True for _ in one.runs.holding), "the run is held")
    (live,) = one.runs.holding
    assert (live.view().state, live.view().waiting_on) == (RunState.PENDING, "the job registry")
    await one.runs.holding.hand_over()
    jobs.open_job = open_job  # type: ignore[method-assign]
    two = await world.coordinator("two", jobs=jobs.of())
    last = await ended(two, live.scope.run_id)
    assert (last.state, last.job_id) == (RunState.COMPLETED, "parallel-1")
    asked.cancel()


@pytest.mark.contract("C19", "C31")
async def test_whoever_takes_a_run_over_waits_for_a_registry_that_is_away(world: World, jobs: JobsInMemory) -> None:
    one = await world.coordinator("one", jobs=jobs.of())
    one.journal.is_cut_at = "set_job"
    asked = asyncio.create_task(one.runs.start(detached(), specs("a")))
    await until(lambda: one.journal.is_cut, "the job is registered")
    jobs.leave()
    two = await world.coordinator("two", jobs=jobs.of())
    await until(lambda: any(True for _ in two.runs.holding), "the run is taken over")
    (live,) = two.runs.holding
    assert live.view().state is RunState.PENDING
    assert not world.agents.calls
    jobs.come_back()
    assert (await ended(two, live.scope.run_id)).state is RunState.COMPLETED
    asked.cancel()


@pytest.mark.contract("C19")
async def test_a_coordinator_without_a_registry_leaves_detached_runs_to_others(
    world: World, jobs: JobsInMemory
) -> None:
    one = await world.coordinator("one", jobs=jobs.of())
    run = await one.runs.start(detached(), specs("a", agent="wait"))
    without = await world.coordinator("without")
    await one.runs.holding.hand_over()
    await until(lambda: run.run_id in without.runs.holding.others, "it has let the run go")
    two = await world.coordinator("two", jobs=jobs.of())
    world.agents.gate.set()
    assert (await ended(two, run.run_id)).state is RunState.COMPLETED
