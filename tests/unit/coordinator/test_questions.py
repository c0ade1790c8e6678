"""What a pipeline asks its caller, who may be slow, wrong, away, or another one than before (C14, C15)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from coordinator.runs import questions
from coordinator.runs.questions import Questions
from coordinator.waiting import Waiting
from fanfold.errors import InvalidArgument
from fanfold.model.pipeline import StageFailure, StageRequest
from fanfold.model.step import AgentStepSpec, StepOutcome

SPEC = AgentStepSpec(task_id="t", agent="a", description="d", prompt="p")
OUTCOME = StepOutcome(task_id="t", agent="a", success=True)

pytestmark = pytest.mark.contract("C15")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.contract("C14")
async def test_each_answer_goes_to_its_own_question_in_whatever_order_they_come() -> None:
    asking = Questions(Waiting(), timeout=30, most=10)
    put: list[StageRequest] = []
    with asking.put_to(put.append):
        answers = [asyncio.create_task(asking.ask(index, 2, OUTCOME)) for index in range(3)]
        await asyncio.sleep(0)
        assert [(request.id, request.index, request.stage, request.previous) for request in put] == [
            (number + 1, number, 2, OUTCOME) for number in range(3)
        ]
        asking.answer(3, None)
        asking.answer(1, StageFailure("broken"))
        asking.answer(2, SPEC)
        assert await answers[1] is SPEC
        assert await answers[2] is None
        with pytest.raises(StageFailure, match="broken"):
            await answers[0]


async def test_time_counts_from_when_the_request_is_sent() -> None:
    asking = Questions(Waiting(), timeout=0.1, most=10)
    put: list[StageRequest] = []
    with asking.put_to(put.append):
        unsent, sent = (asyncio.create_task(asking.ask(index, 0, None)) for index in range(2))
        await asyncio.sleep(0)
        asking.sent(put[1])
        with pytest.raises(StageFailure, match=r"the stage did not answer within 0\.1 s"):
            await sent
        assert not unsent.done()
        asking.sent(put[0])
        with pytest.raises(StageFailure):
            await unsent


async def test_an_answer_that_comes_again_or_too_late_is_of_no_effect_and_a_made_up_one_is_refused() -> None:
    asking = Questions(Waiting(), timeout=0.05, most=10)
    put: list[StageRequest] = []
    with asking.put_to(put.append):
        first = asyncio.create_task(asking.ask(0, 0, None))
        await asyncio.sleep(0)
        asking.answer(1, SPEC)
        asking.answer(1, None)  # before anybody has taken the first one
        assert await first is SPEC
        asking.answer(1, None)
        second = asyncio.create_task(asking.ask(0, 1, OUTCOME))
        await asyncio.sleep(0)
        asking.sent(put[1])
        with pytest.raises(StageFailure):
            await second
        asking.answer(2, SPEC)
        for made_up in (0, 3, 2**64 - 1):
            with pytest.raises(InvalidArgument) as caught:
                asking.answer(made_up, SPEC)
            assert caught.value.violations[0].field == "answers.id"


async def test_no_more_are_put_at_once_than_the_caller_wants() -> None:
    asking = Questions(Waiting(), timeout=30, most=2)
    put: list[StageRequest] = []
    with asking.put_to(put.append):
        answers = [asyncio.create_task(asking.ask(index, 0, None)) for index in range(5)]
        for number in range(5):
            await asyncio.sleep(0)
            assert len(put) == min(5, number + 2)
            asking.answer(number + 1, None)
            await answers[number]
    assert [request.index for request in put] == [0, 1, 2, 3, 4]


async def test_another_caller_is_put_what_the_one_before_has_not_answered() -> None:
    asking = Questions(Waiting(), timeout=0.1, most=10)
    before: list[StageRequest] = []
    with asking.put_to(before.append):
        answers = [asyncio.create_task(asking.ask(index, 0, None)) for index in range(2)]
        await asyncio.sleep(0)
        asking.sent(before[0])
        asking.sent(before[1])
        asking.answer(1, SPEC)
        await answers[0]
    late = asyncio.create_task(asking.ask(2, 0, None))
    await asyncio.wait({answers[1], late}, timeout=0.3)
    assert not answers[1].done(), "no time passes for a caller who is not there"
    after: list[StageRequest] = []
    with asking.put_to(after.append):
        assert [request.index for request in after] == [1, 2]
        asking.answer(after[0].id, SPEC)
        assert await answers[1] is SPEC
        asking.sent(after[1])
        with pytest.raises(StageFailure):
            await late


async def test_a_caller_that_takes_over_has_the_whole_time_for_each_question() -> None:
    asking = Questions(Waiting(), timeout=0.2, most=10)
    before: list[StageRequest] = []
    after: list[StageRequest] = []
    with asking.put_to(before.append):
        answer = asyncio.create_task(asking.ask(0, 0, None))
        await asyncio.sleep(0)
        asking.sent(before[0])
        with asking.put_to(after.append):  # the former one's connection is dead, and nobody has noticed yet
            await asyncio.wait({answer}, timeout=0.5)
            assert not answer.done(), "it was not sent to this one yet"
            asking.sent(after[0])
            asking.answer(after[0].id, SPEC)
            assert await answer is SPEC


async def test_a_pipeline_that_is_cancelled_has_no_questions_left() -> None:
    asking = Questions(Waiting(), timeout=30, most=1)
    put: list[StageRequest] = []
    with asking.put_to(put.append):
        first, second = (asyncio.create_task(asking.ask(index, 0, None)) for index in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait({first})
        asking.answer(1, SPEC)
        await until(lambda: len(put) == 2)
        asking.answer(2, SPEC)
        assert await second is SPEC


@pytest.mark.contract("C42")
async def test_what_is_waited_for_is_told_only_when_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "TOLD_AFTER", 0.1)
    waiting = Waiting()
    asking = Questions(waiting, timeout=30, most=10)
    with asking.put_to(lambda _request: None):
        answer = asyncio.create_task(asking.ask(0, 0, None))
        await asyncio.sleep(0.01)
        assert waiting.summary() == ""
        await until(lambda: waiting.summary() == "its caller, who is to answer for stages")
        asking.answer(1, None)
        await answer
    assert waiting.summary() == ""
