"""Journaled runs over an executor of this process: what is kept, resumed, refused and taken over (C16 to C19)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from coordinator.journal.journal import JournalFailed, PayloadGone
from coordinator.runs.durable import HeldElsewhere
from coordinator.runs.opening import Opening
from coordinator.runs.pipelines import PipelineCall, PipelineRequest
from fanfold.errors import Aborted, InvalidArgument, NotFound, Unavailable
from fanfold.model.checkpoint import hash_of_item
from fanfold.model.pipeline import StageRequest
from fanfold.model.run import EventDetail, RunEvent, RunState, RunStepEvent, StepChanged, WaitingChanged
from fanfold.model.step import AgentStepSpec, StepEnded, StepStarted
from fanfold.schema import SchemaValidator
from support.durable import (
    DEADLINE,
    TIMES,
    Coordinator,
    World,
    decoded,
    end_of,
    events_of,
    opening,
    outputs,
    read_into,
    specs,
)
from support.mesh import until


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        validator = await stack.enter_async_context(SchemaValidator())
        async with asyncio.timeout(DEADLINE):
            yield World(validator, stack)


@pytest.mark.contract("C16", "C18")
async def test_a_finished_run_is_told_again_to_its_request_and_a_new_one_starts_afresh(world: World) -> None:
    one = await world.coordinator("one")
    first = await events_of(one, opening("r1", detail=EventDetail.LIFECYCLE), specs("a", "b"))
    assert outputs(first) == {0: "did a", 1: "did b"}
    assert end_of(first).run.state is RunState.COMPLETED
    assert [event.sequence for event in first] == list(range(1, len(first) + 1))
    again = await events_of(one, opening("r1", detail=EventDetail.LIFECYCLE), specs("a", "b"))
    assert again == first
    assert world.agents.calls == {"a": 1, "b": 1}
    await events_of(one, opening("r2"), specs("a", "b"))
    assert world.agents.calls == {"a": 2, "b": 2}


@pytest.mark.contract("C17", "C42")
async def test_a_run_whose_workflow_has_lost_a_record_ends_and_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def records(*_: str) -> None:
        raise PayloadGone("a payload of workflow 'audit' is lost")

    one = await world.coordinator("one")
    monkeypatch.setattr(one.journal, "records", records, raising=False)
    ended = end_of(await events_of(one, opening("r1"), specs("a")))
    assert (ended.run.state, ended.out_of_quota) == (RunState.FAILED, False)
    assert ended.error == ended.run.reason == "a payload of workflow 'audit' is lost"
    assert not world.agents.calls


@pytest.mark.contract("C18")
async def test_a_request_id_cannot_be_used_for_other_work(world: World) -> None:
    one = await world.coordinator("one")
    await events_of(one, opening("r1"), specs("a"))
    with pytest.raises(InvalidArgument, match="request_id"):
        await events_of(one, opening("r1"), specs("b"))


@pytest.mark.contract("C7", "C16", "F7")
async def test_a_resume_runs_what_failed_what_changed_and_what_is_new_and_nothing_else(world: World) -> None:
    one = await world.coordinator("one")
    world.agents.failing = {"b"}
    first = await events_of(one, opening("r1"), specs("a", "b", "c", "d"))
    assert end_of(first).run.steps.failed == 1
    world.agents.failing = set()
    second = await events_of(one, opening("r2"), [*specs("a", "b", "changed"), *specs(*"uvwxe")[4:]])
    assert world.agents.calls == {"a": 1, "b": 2, "c": 1, "d": 1, "changed": 1, "e": 1}
    assert outputs(second) == {0: "did a", 1: "did b", 2: "did changed", 3: "did e"}
    [changed] = [event for event in second if isinstance(event, StepChanged)]
    assert (changed.key, "prompt" in changed.reason) == ("t2", True)
    # All have succeeded: the checkpoint is gone, so a third run does everything anew.
    await events_of(one, opening("r3"), specs("a"))
    assert world.agents.calls["a"] == 2


@pytest.mark.contract("C16")
async def test_order_and_descriptions_may_change_without_a_step_running_again(world: World) -> None:
    one = await world.coordinator("one")
    world.agents.failing = {"c"}
    steps = specs("a", "b", "c")
    await events_of(one, opening("r1"), steps)
    told = await events_of(one, opening("r2"), [steps[2], steps[1], steps[0]])
    assert [outputs(told)[index] for index in (1, 2)] == ["did b", "did a"]
    assert world.agents.calls == {"a": 1, "b": 1, "c": 2}


@pytest.mark.contract("C18")
async def test_a_workflow_has_one_holder_and_others_are_told_since_when(world: World) -> None:
    one = await world.coordinator("one")
    async with one.runs.parallel(opening("r1"), specs("a", agent="wait")) as source:
        await source.read()
        with pytest.raises(Aborted, match=r"held by run-\w+ since \d{4}-"):
            await events_of(one, opening("r2"), specs("a"))
        async with one.runs.parallel(Opening(owner="bob", workflow_id="audit"), specs("b")) as other:
            assert await other.read()
        world.agents.gate.set()


@pytest.mark.contract("C18", "C28")
async def test_the_same_request_takes_the_running_call_over_from_any_event_on(world: World) -> None:
    one = await world.coordinator("one")
    steps = [*specs("a"), *specs("x", "b", agent="wait")[1:]]
    async with one.runs.parallel(opening("r1", detail=EventDetail.LIFECYCLE), steps) as source:
        seen = decoded(await source.read())
        while not outputs(seen):
            seen += decoded(await source.read())
        asked = opening("r1", detail=EventDetail.LIFECYCLE, from_sequence=seen[-1].sequence + 1)
        rest = asyncio.ensure_future(events_of(one, asked, steps))
        with pytest.raises(Aborted, match="took the run over"):
            await read_into(seen, source)
    world.agents.gate.set()
    told = seen + [event for event in await rest if event.sequence > seen[-1].sequence]
    assert [event.sequence for event in told] == list(range(1, len(told) + 1))
    assert outputs(told) == {0: "did a", 1: "did b"}
    assert world.agents.calls == {"a": 1, "b": 1}


@pytest.mark.contract("C16", "C42", "F25")
async def test_a_run_whose_caller_stays_away_begins_nothing_and_is_cancelled(world: World) -> None:
    one = await world.coordinator("one")
    async with one.runs.parallel(opening("r1"), specs(*"abcdefgh", agent="wait")) as source:
        await source.read()
        await until(lambda: len(world.agents.calls) == 4, "four steps run")
        [run] = one.runs.holding
    world.agents.gate.set()
    reader = run.reader(0, EventDetail.LIFECYCLE)
    told: list[RunEvent] = []
    await read_into(told, reader)
    assert len(world.agents.calls) == 4
    assert "its caller, who is away" in {event.waiting_on for event in told if isinstance(event, WaitingChanged)}
    assert end_of(told).run.state is RunState.CANCELLED
    assert "did not come back" in end_of(told).run.reason
    kept = await one.journal.find(end_of(told).run.run_id)
    assert kept is not None
    assert (kept.run.state, kept.run.waiting_on) == (RunState.CANCELLED, "")
    await events_of(one, opening("r1"), specs(*"abcdefgh"))
    assert set(world.agents.calls) == set("abcdefgh")


@pytest.mark.contract("C27")
async def test_a_cancelled_run_keeps_the_first_reason_and_its_records(world: World) -> None:
    one = await world.coordinator("one")
    steps = [*specs("a"), *specs("x", "b", agent="wait")[1:]]
    async with one.runs.parallel(opening("r1"), steps) as source:
        told = decoded(await source.read())
        while not outputs(told):
            told += decoded(await source.read())
        [run] = one.runs.holding
        run.cancel("enough")
        run.cancel("too late")
        await read_into(told, source)
    assert (end_of(told).run.state, end_of(told).run.reason) == (RunState.CANCELLED, "enough")
    world.agents.gate.set()
    await events_of(one, opening("r2"), steps)
    assert world.agents.calls == {"a": 1, "b": 2}


@pytest.mark.contract("C19", "F5", "F6")
async def test_a_coordinator_cut_from_the_journal_stops_and_another_goes_on(world: World) -> None:
    one, two = await world.coordinator("one"), await world.coordinator("two")
    steps = [*specs("a", "b"), *specs("x", "y", "c", "d", agent="wait")[2:]]
    asked = opening("r1", detail=EventDetail.LIFECYCLE)
    seen: list[RunEvent] = []
    async with one.runs.parallel(asked, steps) as source:
        while len(outputs(seen)) < 2 or len(world.agents.calls) < 4:
            seen += decoded(await source.read())
        one.journal.is_cut = True
        with pytest.raises((JournalFailed, Aborted, Unavailable)):
            await read_into(seen, source)
    await until(lambda: not [*one.runs.holding], "nothing of it is left there")
    await until(lambda: bool([*two.runs.holding]), "the other has it")
    world.agents.gate.set()
    again = opening("r1", detail=EventDetail.LIFECYCLE, from_sequence=seen[-1].sequence + 1)
    told = seen + await events_of(two, again, steps)
    assert [event.sequence for event in told] == list(range(1, len(told) + 1))
    assert outputs(told) == {0: "did a", 1: "did b", 2: "did c", 3: "did d"}
    assert (world.agents.calls["a"], world.agents.calls["b"]) == (1, 1)
    started = Counter(
        event.index for event in told if isinstance(event, RunStepEvent) and isinstance(event.event, StepStarted)
    )
    assert set(started.values()) == {1}


@pytest.mark.contract("C19", "C43")
async def test_a_coordinator_that_leaves_hands_its_runs_over_at_once(world: World) -> None:
    one, two = await world.coordinator("one"), await world.coordinator("two")
    steps = specs("a", "b", agent="wait")
    async with one.runs.parallel(opening("r1"), steps) as source:
        await source.read()
        await until(lambda: len(world.agents.calls) == 2, "both run")
        began = asyncio.get_running_loop().time()
        await one.runs.holding.hand_over()
        with pytest.raises(Unavailable, match="moves to another"):
            await read_into([], source)
    with pytest.raises(Unavailable, match="about to stop"):
        await events_of(one, opening("r9"), steps)
    await until(lambda: len(list(two.runs.holding)) == 1, "the other has it")
    assert asyncio.get_running_loop().time() - began < TIMES.lease
    world.agents.gate.set()
    assert outputs(await events_of(two, opening("r1"), steps)) == {0: "did a", 1: "did b"}


@pytest.mark.contract("C19")
async def test_a_call_that_reaches_another_coordinator_is_told_where_the_run_is(world: World) -> None:
    one, two = await world.coordinator("one"), await world.coordinator("two")
    async with one.runs.parallel(opening("r1"), specs("a", agent="wait")) as source:
        await source.read()
        with pytest.raises(HeldElsewhere) as caught:
            await events_of(two, opening("r1"), specs("a", agent="wait"))
        assert caught.value.address == "one"
        world.agents.gate.set()


async def test_a_run_as_before_needs_one_before(world: World) -> None:
    one = await world.coordinator("one")
    with pytest.raises(NotFound):
        await one.runs.specs_as_before("alice", "audit")
    await events_of(one, opening("r1"), specs("a", "b"))
    assert await one.runs.specs_as_before("alice", "audit") == specs("a", "b")
    with pytest.raises(NotFound):
        await one.runs.specs_as_before("bob", "audit")


PIPELINE = PipelineRequest(
    item_hashes=[hash_of_item(text) for text in ("1", "2", "3")], stages=2, stage_timeout=5.0, most_requests=8
)


class Caller:
    """A pipeline's caller, which answers every question with a step whose prompt names item and stage."""

    def __init__(self, stop_after: int = 1_000) -> None:
        self.asked: list[tuple[int, int, str]] = []
        self.told: list[RunEvent] = []
        self._stop_after = stop_after

    async def attend(self, coordinator: Coordinator, asked: Opening, request: PipelineRequest = PIPELINE) -> None:
        async with coordinator.runs.pipeline(asked, request) as call:
            while page := await call.source.read():
                for one in page:
                    if isinstance(one, StageRequest):
                        self.answer(call, one)
                    elif isinstance(one, bytes):
                        self.told += decoded([one])
                if len(self.ended()) >= self._stop_after:
                    return

    def ended(self) -> dict[tuple[int, int], str]:
        return {
            (event.index, event.stage): event.event.outcome.output
            for event in self.told
            if isinstance(event, RunStepEvent) and isinstance(event.event, StepEnded)
        }

    def answer(self, call: PipelineCall, request: StageRequest) -> None:
        self.asked.append((request.index, request.stage, request.previous.output if request.previous else ""))
        prompt = f"item {request.index} stage {request.stage}"
        step = AgentStepSpec(task_id=f"s{request.stage}", agent="work", description="d", prompt=prompt)
        call.questions.sent(request)
        call.questions.answer(request.id, step)


WHOLE = {(item, stage): f"did item {item} stage {stage}" for item in range(3) for stage in range(2)}


@pytest.mark.contract("C14", "C16", "F7")
async def test_a_resumed_pipeline_asks_every_stage_and_runs_only_what_is_not_recorded(world: World) -> None:
    one = await world.coordinator("one")
    world.agents.failing = {"item 1 stage 1"}
    first = Caller()
    await first.attend(one, opening("r1"))
    assert first.ended() | {(1, 1): ""} == WHOLE | {(1, 1): ""}
    world.agents.failing = set()
    second = Caller()
    await second.attend(one, opening("r2"))
    assert second.ended() == WHOLE
    assert sorted(second.asked) == sorted(
        [(item, 0, "") for item in range(3)] + [(item, 1, f"did item {item} stage 0") for item in range(3)]
    )
    assert world.agents.calls == {f"item {i} stage {s}": 2 if (i, s) == (1, 1) else 1 for i, s in WHOLE}


@pytest.mark.contract("C7", "C16")
async def test_another_item_makes_its_steps_run_again_and_no_others(world: World) -> None:
    one = await world.coordinator("one")
    world.agents.failing = {"item 2 stage 1"}
    await Caller().attend(one, opening("r1"))
    world.agents.failing = set()
    other = replace(PIPELINE, item_hashes=[hash_of_item("7"), *PIPELINE.item_hashes[1:]])
    caller = Caller()
    await caller.attend(one, opening("r2"), other)
    again = {"item 0 stage 0", "item 0 stage 1", "item 2 stage 1"}
    assert {prompt for prompt, count in world.agents.calls.items() if count == 2} == again
    assert {event.key for event in caller.told if isinstance(event, StepChanged)} == {"0.0", "0.1"}


@pytest.mark.contract("C14", "C18", "C19", "C28")
async def test_a_pipeline_goes_on_elsewhere_from_where_its_items_were(world: World) -> None:
    one, two = await world.coordinator("one"), await world.coordinator("two")
    asked = opening("r1", detail=EventDetail.LIFECYCLE)
    first = Caller(stop_after=2)
    await first.attend(one, asked)
    await one.runs.holding.hand_over()
    await until(lambda: bool([*two.runs.holding]), "the other has it")
    second = Caller()
    await second.attend(two, asked)
    assert second.ended() == WHOLE
    assert [event.sequence for event in second.told] == list(range(1, len(second.told) + 1))
    assert second.told[: len(first.told)] == first.told
    assert {world.agents.calls[f"item {item} stage {stage}"] for item, stage in first.ended()} == {1}
    ended_before = {place for place in first.ended() if place[1] == 1}
    assert not [place for place in ended_before if (place[0], 1) in {(item, stage) for item, stage, _ in second.asked}]
    again = Caller()
    await again.attend(two, asked)
    assert (again.told, again.asked) == (second.told, [])


@pytest.mark.contract("C16")
async def test_a_stage_is_asked_only_when_the_outcome_before_is_durable(world: World) -> None:
    one = await world.coordinator("one")
    async with one.runs.pipeline(opening("r1"), PIPELINE) as call:
        caller = Caller()
        questions: list[StageRequest] = []
        while len(questions) < 3:
            questions += [each for each in await call.source.read() if isinstance(each, StageRequest)]
        one.journal.hold()
        for question in questions:
            caller.answer(call, question)
        await until(lambda: len(world.agents.calls) == 3, "the first stages have run")
        reading = asyncio.ensure_future(call.source.read())
        await asyncio.sleep(0.1)
        assert not reading.done()
        one.journal.release()
        await reading


@pytest.mark.contract("C17", "C42")
async def test_a_run_whose_journal_is_away_says_so_and_goes_on_when_it_is_back(world: World) -> None:
    one = await world.coordinator("one")
    async with one.runs.parallel(opening("r1"), specs("a", agent="wait")) as source:
        told = decoded(await source.read())
        [run] = one.runs.holding
        one.journal.refuses = "append"
        world.agents.gate.set()
        await until(lambda: run.view().waiting_on == "the journal, which cannot be written", "it says what it waits on")
        one.journal.refuses = ""
        await read_into(told, source)
    assert outputs(told) == {0: "did a"}
    assert end_of(told).run.waiting_on == ""
