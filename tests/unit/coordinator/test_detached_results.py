"""What the jobs of detached runs end with: outcomes, or the reason that there are none (C31)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from coordinator.journal.journal import PayloadGone
from fanfold.errors import ResourceExhausted, Unavailable
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


@pytest.mark.contract("C39")
async def test_a_result_that_the_registry_does_not_take_is_left_out_and_the_detail_says_so(
    world: World, jobs: JobsInMemory
) -> None:
    jobs.max_result_bytes = 10
    one = await world.coordinator("one", jobs=jobs.of())
    run = await one.runs.start(detached(), specs("a"))
    await ended(one, run.run_id)
    assert jobs.only.result is None
    assert jobs.only.job.detail == "1/1 steps; no result: its outcomes have more than 10 bytes"


@pytest.mark.contract("C13")
async def test_a_budget_is_in_the_result(world: World, jobs: JobsInMemory) -> None:
    one = await world.coordinator("one", jobs=jobs.of())
    run = await one.runs.start(detached(budget_tokens=100), specs("7", agent="spend"))
    await ended(one, run.run_id)
    assert json.loads(jobs.only.result or b"")["budget"] == {"limit": 100, "spent": 7, "refused_steps": 0}


@pytest.mark.contract("C31", "C36", "C42", "F3")
@pytest.mark.parametrize("is_known", [True, False], ids=["its id is kept", "its id is not kept"])
async def test_the_job_of_a_run_that_nobody_can_go_on_with_fails_with_the_reason(
    world: World, jobs: JobsInMemory, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    tries = 0

    async def gone(*_: object) -> None:
        nonlocal tries
        tries += 1
        raise PayloadGone("it is lost")

    one = await world.coordinator("one", jobs=jobs.of())
    one.journal.is_cut_at = "" if is_known else "set_job"
    asked = asyncio.create_task(one.runs.start(detached(), specs("a", agent="wait")))
    await until(lambda: one.journal.is_cut or bool(world.agents.calls), "the job is there")
    kept = await world.shared.find_request("alice", "r1")
    assert kept is not None
    monkeypatch.setattr(world.shared, "request", gone)
    await one.runs.holding.hand_over()
    jobs.leave()
    two = await world.coordinator("two", jobs=jobs.of())
    await until(lambda: tries > 0, "the run cannot be gone on with")
    jobs.come_back()
    last = await ended(two, kept.run.run_id)
    assert (last.state, last.reason, last.job_id) == (RunState.FAILED, "it is lost", "parallel-1")
    assert (jobs.only.job.state, jobs.only.job.detail) == (JobState.FAILED, "0/1 steps: it is lost")
    assert len(jobs.jobs) == 1
    asked.cancel()


@pytest.mark.contract("C42", "F3")
async def test_a_run_that_nobody_can_go_on_with_ends_also_where_the_registry_refuses_it(
    world: World, jobs: JobsInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*_: object) -> None:
        raise PayloadGone("it is lost")

    one = await world.coordinator("one", jobs=jobs.of())
    one.journal.is_cut_at = "set_job"
    asked = asyncio.create_task(one.runs.start(detached(), specs("a", agent="wait")))
    await until(lambda: one.journal.is_cut, "it is begun, and no job yet")
    kept = await world.shared.find_request("alice", "r1")
    assert kept is not None
    monkeypatch.setattr(world.shared, "request", gone)
    await one.runs.holding.hand_over()
    jobs.refusal = ResourceExhausted("no room")
    two = await world.coordinator("two", jobs=jobs.of())
    last = await ended(two, kept.run.run_id)
    assert (last.state, last.reason, last.job_id) == (RunState.FAILED, "it is lost", "")
    asked.cancel()


@pytest.mark.contract("C31", "C36", "C42")
async def test_the_job_of_a_run_whose_work_breaks_fails_with_it(
    world: World, jobs: JobsInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr("coordinator.runs.work.ParallelWork.carry_out", broken)
    one = await world.coordinator("one", jobs=jobs.of())
    run = await one.runs.start(detached(), specs("a", "b"))
    last = await ended(one, run.run_id)
    assert (last.state, last.job_id) == (RunState.FAILED, "parallel-1")
    assert jobs.only.job.state is JobState.FAILED
    assert jobs.only.job.detail == "0/2 steps: the coordinator cannot carry it out; its log says why"


@pytest.mark.contract("C31", "C44")
async def test_whoever_asks_for_a_run_that_has_just_been_refused_gets_no_run_without_a_job(
    world: World, jobs: JobsInMemory
) -> None:
    one = await world.coordinator("one", jobs=jobs.of())
    jobs.refusal = ResourceExhausted("no room")
    locate = one.runs.locate

    async def late(run_id: str) -> object:
        await ended(one, run_id)
        await until(
            lambda: one.runs.holding.get(run_id) is None, "nothing of it is left, so that only the journal tells"
        )
        return await locate(run_id)

    one.runs.locate = late  # type: ignore[method-assign,assignment]
    with pytest.raises(Unavailable, match="no room"):
        await one.runs.start(detached(), specs("a"))
