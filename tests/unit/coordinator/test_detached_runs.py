"""Detached runs over an executor of this process: registered first, told as they become durable, settled last (C31)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from fanfold.errors import NO_CONNECTION, FailedPrecondition, InvalidArgument, ResourceExhausted, Unavailable
from fanfold.model.job import JobState
from fanfold.model.run import EventDetail, RunEvent, RunState
from fanfold.schema import SchemaValidator
from support.detached import detached, ended
from support.durable import DEADLINE, World, decoded, end_of, opening, outputs, read_into, specs
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


async def until_settled(jobs: JobsInMemory) -> None:
    await until(lambda: jobs.only.job.state.is_settled, "the job is settled")


@pytest.mark.contract("C31", "C35", "C37")
async def test_a_detached_run_is_a_job_with_a_line_for_each_step_and_all_outcomes(
    world: World, jobs: JobsInMemory
) -> None:
    one = await world.coordinator("one", jobs=jobs.of())
    world.agents.failing.add("b")
    run = await one.runs.start(detached(), specs("a", "b", "c"))
    assert (run.attached, run.job_id, run.state) == (False, "parallel-1", RunState.RUNNING)
    await until_settled(jobs)
    kept = jobs.only
    assert (kept.job.kind, kept.job.label, kept.job.owner) == ("parallel", "d", "alice")
    assert (kept.job.state, kept.job.detail) == (JobState.COMPLETED, "3/3 steps, 1 failed")
    assert sorted(line.partition(" ")[2] for line in kept.log.decode().splitlines()) == [
        "t0: ok",
        "t1: AGENT_FAILED: not today",
        "t2: ok",
    ]
    assert kept.lines[-1] == "3/3 steps, 1 failed"
    result = json.loads(kept.result or b"")
    assert list(result) == ["outcomes"]
    assert [outcome["task_id"] for outcome in result["outcomes"]] == ["t0", "t1", "t2"]
    assert [outcome["success"] for outcome in result["outcomes"]] == [True, False, True]
    assert (await ended(one, run.run_id)).state is RunState.COMPLETED


@pytest.mark.contract("C31", "C28")
async def test_a_detached_run_can_be_watched_and_its_workflow_is_resumed_as_others_are(
    world: World, jobs: JobsInMemory
) -> None:
    one = await world.coordinator("one", jobs=jobs.of())
    world.agents.failing.add("b")
    first = await one.runs.start(detached("r1", workflow_id="audit"), specs("a", "b"))
    told: list[RunEvent] = []
    await read_into(told, await one.runs.reader(first.run_id, 0, EventDetail.OUTCOMES))
    assert end_of(told).run.state is RunState.COMPLETED
    assert end_of(told).run.job_id == "parallel-1"
    assert jobs.only.job.label == "audit"
    world.agents.failing.clear()
    second = await one.runs.start(detached("r2", workflow_id="audit"), specs("a", "b"))
    await ended(one, second.run_id)
    assert world.agents.calls == {"a": 1, "b": 2}
    assert b"t0: ok, recorded before\n" in jobs.jobs["parallel-2"].log


@pytest.mark.contract("C32", "C39")
@pytest.mark.parametrize("refusal", [ResourceExhausted("500 live jobs are the most"), Unavailable("away")])
async def test_a_run_that_cannot_be_registered_starts_nothing_and_can_be_asked_for_again(
    world: World, jobs: JobsInMemory, refusal: ResourceExhausted | Unavailable
) -> None:
    one = await world.coordinator("one", jobs=jobs.of())
    jobs.refusal = refusal
    with pytest.raises(type(refusal), match=refusal.message):
        await one.runs.start(detached(), specs("a"))
    assert not world.agents.calls
    kept = await one.runs.journal.find_request("alice", "r1")
    assert kept is not None
    assert kept.run.state is RunState.FAILED
    assert refusal.message in kept.run.reason
    jobs.refusal = None
    run = await one.runs.start(detached(), specs("a"))
    await ended(one, run.run_id)
    assert world.agents.calls == {"a": 1}


async def test_whose_the_address_is_that_cannot_be_reached_is_told(world: World, jobs: JobsInMemory) -> None:
    one = await world.coordinator("one", jobs=jobs.of())
    jobs.refusal = Unavailable("127.0.0.1:1 cannot be reached: Connection refused", reason=NO_CONNECTION)
    with pytest.raises(
        Unavailable, match=r"^the coordinator's job registry 127\.0\.0\.1:1 cannot be reached"
    ) as raised:
        await one.runs.start(detached(), specs("a"))
    assert raised.value.reason == "REGISTRY_UNREACHABLE", "a client would take it for the coordinator's own address"


@pytest.mark.contract("C31", "C43")
@pytest.mark.parametrize("reason", ["DRAINING", "CALL_BROKEN"])
async def test_a_run_is_registered_by_the_registry_that_takes_the_place_of_one_that_stops(
    world: World, jobs: JobsInMemory, reason: str
) -> None:
    one = await world.coordinator("one", jobs=jobs.of())
    jobs.refusal = Unavailable("the server is stopping", reason=reason)
    starting = asyncio.ensure_future(one.runs.start(detached(), specs("a")))
    await asyncio.sleep(0.1)
    assert not starting.done()
    jobs.refusal = None
    run = await starting
    assert run.job_id == "parallel-1"
    assert (await ended(one, run.run_id)).state is RunState.COMPLETED


@pytest.mark.contract("C31", "C43")
async def test_a_run_that_is_handed_over_as_it_fails_to_be_registered_is_a_job_before_anybody_is_told_of_it(
    world: World, jobs: JobsInMemory
) -> None:
    one = await world.coordinator("one", jobs=jobs.of())
    jobs.refusal = Unavailable("away")
    one.journal.hold()
    asked = asyncio.ensure_future(one.runs.start(detached(), specs("a")))
    await until(lambda: bool([run for run in one.runs.holding if run.job and run.job.refusal]), "it is no job")
    await asyncio.sleep(0.05)  # until it waits for its start to be durable
    leaving = asyncio.ensure_future(one.runs.holding.hand_over())
    await asyncio.sleep(0.05)
    one.journal.release()  # its start is told, which is as far as it comes there
    with pytest.raises(Unavailable):
        await asked
    await leaving
    two = await world.coordinator("two", jobs=jobs.of())
    again = asyncio.ensure_future(two.runs.start(detached(), specs("a")))
    await until(lambda: bool([*two.runs.holding]), "the other has it")
    await asyncio.sleep(0.3)
    assert not again.done(), "somebody was told of a run that is no job"
    jobs.refusal = None
    run = await again
    assert run.job_id == "parallel-1"
    assert (await ended(two, run.run_id)).state is RunState.COMPLETED
    assert world.agents.calls == {"a": 1}


@pytest.mark.contract("C17")
async def test_without_a_registry_a_detached_run_is_refused(world: World) -> None:
    one = await world.coordinator("one")
    with pytest.raises(FailedPrecondition, match="no job registry"):
        await one.runs.start(detached(), specs("a"))
    assert await one.runs.journal.find_request("alice", "r1") is None


@pytest.mark.contract("C44")
async def test_the_same_request_gives_the_same_run_however_it_ended(world: World, jobs: JobsInMemory) -> None:
    one = await world.coordinator("one", jobs=jobs.of())
    run = await one.runs.start(detached(), specs("a", agent="wait"))
    assert (await one.runs.start(detached(), specs("a", agent="wait"))).run_id == run.run_id
    live = one.runs.holding.get(run.run_id)
    assert live is not None
    live.cancel("enough")
    await ended(one, run.run_id)
    again = await one.runs.start(detached(), specs("a", agent="wait"))
    assert (again.run_id, again.state) == (run.run_id, RunState.CANCELLED)
    assert len(jobs.jobs) == 1
    with pytest.raises(InvalidArgument):
        async with one.runs.parallel(opening("r1"), specs("a", agent="wait")):
            pass


async def test_events_of_a_detached_run_begin_with_its_start(world: World, jobs: JobsInMemory) -> None:
    one = await world.coordinator("one", jobs=jobs.of())
    jobs.refusal = ResourceExhausted("no room")
    with pytest.raises(ResourceExhausted):
        await one.runs.start(detached(), specs("a"))
    kept = await one.runs.journal.find_request("alice", "r1")
    assert kept is not None
    reader = await one.runs.reader(kept.run.run_id, 0, EventDetail.LIFECYCLE)
    told = decoded(await reader.read())
    assert [type(event).__name__ for event in told] == ["RunStarted", "RunEnded"]
    assert outputs(told) == {}
    assert end_of(told).error == "it could not be registered as a job: no room"
