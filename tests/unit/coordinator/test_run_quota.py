"""Runs for some of whose steps there was no quota: they have not completed, but tell all that came of them (F8)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from coordinator.runs.opening import Opening
from coordinator.runs.quota import Shortfall
from fanfold.model.job import JobState
from fanfold.model.run import EventDetail, RunEvent, RunState
from fanfold.model.step import FailureCode, StepFailure, StepOutcome
from fanfold.schema import SchemaValidator
from support.durable import DEADLINE, World, end_of, events_of, opening, outputs, read_into, specs
from support.jobs import JobsInMemory
from support.mesh import until

pytestmark = pytest.mark.contract("C24", "F8")

WHY = "there was no quota for 1 step (t1: no money)"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        validator = await stack.enter_async_context(SchemaValidator())
        async with asyncio.timeout(DEADLINE):
            yield World(validator, stack)


def outcome(code: FailureCode, task_id: str = "t") -> StepOutcome:
    return StepOutcome(task_id=task_id, agent="a", success=False, failure=StepFailure(code=code, message="why"))


def test_only_a_quota_that_is_gone_keeps_a_run_from_completing() -> None:
    shortfall = Shortfall()
    for code in FailureCode:
        if code is not FailureCode.QUOTA_EXHAUSTED:
            shortfall.note(outcome(code))
    shortfall.note(StepOutcome(task_id="t", agent="a", success=True))
    assert shortfall.reason == ""
    for task_id in ("first", "second"):
        shortfall.note(outcome(FailureCode.QUOTA_EXHAUSTED, task_id))
    assert shortfall.reason == "there was no quota for 2 steps (first: why)"


async def test_its_siblings_are_run_and_resumed_it_does_only_what_is_missing(world: World) -> None:
    one = await world.coordinator("one")
    world.agents.unpaid.add("b")
    told = await events_of(one, opening("r1"), specs("a", "b", "c"))
    assert outputs(told) == {0: "did a", 1: "", 2: "did c"}
    end = end_of(told)
    assert (end.run.state, end.out_of_quota, end.error, end.run.reason) == (RunState.FAILED, True, WHY, WHY)
    kept = await one.journal.find(end.run.run_id)
    assert (kept.run.state, kept.run.reason) == (RunState.FAILED, WHY)
    world.agents.unpaid.clear()
    again = end_of(await events_of(one, opening("r2"), specs("a", "b", "c")))
    assert (again.run.state, again.out_of_quota, again.error) == (RunState.COMPLETED, False, "")
    assert world.agents.calls == {"a": 1, "b": 2, "c": 1}


async def test_a_successor_knows_of_what_its_former_holder_has_seen(world: World) -> None:
    one, two = await world.coordinator("one"), await world.coordinator("two")
    world.agents.unpaid.add("b")
    steps = [*specs("a", "b"), *(spec for spec in specs("x", "x", "c", agent="wait") if spec.task_id == "t2")]
    told: list[RunEvent] = []
    async with one.runs.parallel(opening("r1"), steps) as source:
        reading = asyncio.ensure_future(read_into(told, source))
        await until(lambda: len(outputs(told)) == 2 and bool(world.agents.calls["c"]), "two of three have ended")
        await one.runs.holding.hand_over()
        await asyncio.wait([reading])
        assert reading.exception() is not None
    await until(lambda: bool([*two.runs.holding]), "the other has it")
    world.agents.gate.set()
    end = end_of(await events_of(two, opening("r1"), steps))
    assert (end.run.state, end.out_of_quota, end.error) == (RunState.FAILED, True, WHY)


async def test_the_job_of_a_detached_run_has_failed_and_has_all_outcomes(world: World) -> None:
    jobs = JobsInMemory()
    one = await world.coordinator("one", jobs=jobs.of())
    world.agents.unpaid.add("b")
    run = await one.runs.start(Opening(owner="alice", request_id="r1", attached=False), specs("a", "b"))
    await until(lambda: jobs.only.job.state.is_settled, "the job is settled")
    assert (jobs.only.job.state, jobs.only.job.detail) == (JobState.FAILED, f"2/2 steps, 1 failed: {WHY}")
    assert [each["success"] for each in json.loads(jobs.only.result or b"")["outcomes"]] == [True, False]
    told: list[RunEvent] = []
    await read_into(told, await one.runs.reader(run.run_id, 0, EventDetail.OUTCOMES))
    assert (end_of(told).run.state, end_of(told).out_of_quota) == (RunState.FAILED, True)
