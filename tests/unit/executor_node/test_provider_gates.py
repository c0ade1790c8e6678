"""Gates before providers: whom they hold back, and for how long."""

from __future__ import annotations

import asyncio

import pytest

from executor_node.agents.llm.assignment import Assignment
from executor_node.agents.llm.gates import LONGEST_PAUSE_SECONDS, Gate, Gates
from fanfold.model.step import FailureCode, StepFailure


def gate_with(quota_pause: float) -> Gate:
    return Gate("openai", quota_pause=quota_pause)


@pytest.mark.contract("F9")
async def test_after_a_rate_limit_nobody_is_early_and_nobody_goes_with_the_others() -> None:
    loop = asyncio.get_running_loop()
    gate = gate_with(60)
    gate.limited(0.3)
    opens_at = loop.time() + 0.3

    async def pass_gate() -> float:
        assert await gate.turn(object()) is None
        return loop.time() - opens_at

    late = sorted(await asyncio.gather(*(pass_gate() for _ in range(20))))
    assert late[0] >= -0.01
    assert late[-1] - late[0] > 0.2  # all 20 within a fifth of a second by chance: once in 10^12
    assert await asyncio.wait_for(gate.turn(object()), 0.1) is None


async def test_a_pause_that_is_too_long_is_the_end_of_the_attempt() -> None:
    gate = gate_with(60)
    gate.limited(3600)
    failure = await asyncio.wait_for(gate.turn(object()), 1)
    assert failure is not None
    assert (failure.code, failure.retryable) == (FailureCode.AGENT_FAILED, True)
    assert gate.waiting_on == "the rate limit of openai"


@pytest.mark.contract("F9")
async def test_no_provider_is_left_alone_for_ever_because_of_what_it_once_said() -> None:
    gate = gate_with(60)
    gate.limited(1_764_500_000.0)
    failure = await gate.turn(object())
    assert failure is not None
    assert failure.message.startswith("openai limits the rate for another ")
    assert int(failure.message.split()[-2]) <= LONGEST_PAUSE_SECONDS


@pytest.mark.contract("F8")
async def test_when_the_quota_is_gone_one_call_tries_again_after_a_pause_and_others_wait_for_its_answer() -> None:
    gate = gate_with(0.2)
    gate.exhausted("no money")
    refusal = StepFailure(code=FailureCode.QUOTA_EXHAUSTED, message="no money")
    assert [await gate.turn(object()) for _ in range(5)] == [refusal] * 5
    await asyncio.sleep(0.25)
    assert gate.refusal is None
    assert not gate.is_out_of_quota
    assert await gate.turn("first") is None
    others = [asyncio.create_task(gate.turn(each)) for each in range(4)]
    await asyncio.sleep(0.05)
    assert not any(other.done() for other in others)
    assert gate.is_out_of_quota
    assert await gate.turn("first") is None  # a rate limit came between
    gate.answered("first")
    assert await asyncio.wait_for(asyncio.gather(*others), 5) == [None] * 4
    assert gate.waiting_on == ""


@pytest.mark.contract("F8")
async def test_a_call_that_tries_in_vain_is_the_only_one() -> None:
    gate = gate_with(0.2)
    gate.exhausted("no money")
    await asyncio.sleep(0.25)
    assert await gate.turn("first") is None
    others = [asyncio.create_task(gate.turn(each)) for each in range(4)]
    await asyncio.sleep(0.05)
    gate.exhausted("still none")
    refusal = StepFailure(code=FailureCode.QUOTA_EXHAUSTED, message="still none")
    assert await asyncio.wait_for(asyncio.gather(*others), 5) == [refusal] * 4


@pytest.mark.contract("F8")
async def test_a_step_that_was_to_try_and_ends_leaves_that_to_one_other() -> None:
    gate = gate_with(0.2)
    gate.exhausted("no money")
    await asyncio.sleep(0.25)
    assert await gate.turn("first") is None
    others = {each: asyncio.create_task(gate.turn(each)) for each in range(3)}
    await asyncio.sleep(0.05)
    gate.leave(0)
    await asyncio.sleep(0.05)
    assert not any(other.done() for other in others.values())
    gate.leave("first")
    done, waiting = await asyncio.wait(others.values(), timeout=5, return_when=asyncio.FIRST_COMPLETED)
    assert (len(done), len(waiting)) == (1, 2)
    gate.answered(next(each for each, other in others.items() if other in done))
    assert await asyncio.wait_for(asyncio.gather(*waiting), 5) == [None] * 2


@pytest.mark.contract("F8")
async def test_answers_to_calls_from_before_the_quota_was_gone_let_nobody_pass() -> None:
    gate = gate_with(0.2)
    assert [await gate.turn(each) for each in ("early", "late")] == [None, None]
    gate.exhausted("no money")
    gate.answered("late")
    assert gate.refusal == StepFailure(code=FailureCode.QUOTA_EXHAUSTED, message="no money")
    await asyncio.sleep(0.25)
    assert await gate.turn("first") is None
    gate.answered("late")
    assert gate.is_out_of_quota
    gate.answered("first")
    assert not gate.is_out_of_quota
    assert gate.waiting_on == ""


async def test_there_is_a_gate_for_each_provider_and_key() -> None:
    gates = Gates(lambda _provider: gate_with(60))
    one = gates.of(Assignment(model="openai:a", api_key="k"))
    assert gates.of(Assignment(model="openai:b", api_key="k")) is one
    assert gates.of(Assignment(model="openai:a", api_key="l")) is not one
    assert gates.of(Assignment(model="anthropic:a", api_key="k")) is not one
