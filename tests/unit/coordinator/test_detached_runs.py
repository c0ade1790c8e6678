"""Detached runs over an executor of this process: registered first, told as they become durable, settled last (C31)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from coordinator.journal.journal import JournalFailed, PayloadGone
from coordinator.runs.opening import Opening
from fanfold.errors import FailedPrecondition, InvalidArgument, ResourceExhausted, Unavailable
from fanfold.model.job import JobState
from fanfold.model.run import EventDetail, Run, RunEvent, RunState
from fanfold.schema import SchemaValidator
from support.durable import DEADLINE, Coordinator, World, decoded, end_of, opening, outputs, read_into, specs
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


def detached(request_id: str = "r1", **fields: object) -> Opening:
    asked = Opening(owner="alice", request_id=request_id, attached=False)
    return replace(asked, **fields)  # type: ignore[arg-type]


async def until_settled(jobs: JobsInMemory) -> None:
    await until(lambda: jobs.only.job.state.is_settled, "the job is settled")


async def ended(coordinator: Coordinator, run_id: str) -> Run:
    """The run as it ended."""
    while (kept := await coordinator.runs.journal.find(run_id)) is None or kept.run.ended_at is None:
        await asyncio.sleep(0.01)
    return kept.run


def agents_called(world: World) -> bool:
    return bool(world.agents.calls)


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
    await until(lambda: bool(without.runs.holding._others), "it has let the run go")
    two = await world.coordinator("two", jobs=jobs.of())
    world.agents.gate.set()
    assert (await ended(two, run.run_id)).state is RunState.COMPLETED


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
        return await locate(run_id)

    one.runs.locate = late  # type: ignore[method-assign,assignment]
    with pytest.raises(Unavailable, match="no room"):
        await one.runs.start(detached(), specs("a"))
