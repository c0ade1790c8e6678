"""Gates before providers: whom they hold back, and for how long."""

from __future__ import annotations

import asyncio

import pytest

from executor_node.agents.llm.assignment import Assignment
from executor_node.agents.llm.gates import Gate, Gates
from fanfold.model.step import FailureCode, StepFailure


@pytest.mark.contract("F9")
async def test_after_a_rate_limit_nobody_is_early_and_nobody_goes_with_the_others() -> None:
    loop = asyncio.get_running_loop()
    gate = Gate("openai")
    gate.limited(0.3)
    opens_at = loop.time() + 0.3

    async def pass_gate() -> float:
        assert await gate.turn() is None
        return loop.time() - opens_at

    late = sorted(await asyncio.gather(*(pass_gate() for _ in range(20))))
    assert late[0] >= -0.01
    assert late[-1] - late[0] > 0.2  # all 20 within a fifth of a second by chance: once in 10^12
    assert await asyncio.wait_for(gate.turn(), 0.1) is None


async def test_a_pause_that_is_too_long_is_the_end_of_the_attempt() -> None:
    gate = Gate("openai")
    gate.limited(3600)
    failure = await asyncio.wait_for(gate.turn(), 1)
    assert failure is not None
    assert (failure.code, failure.retryable) == (FailureCode.AGENT_FAILED, True)
    assert gate.waiting_on == "the rate limit of openai"


@pytest.mark.contract("F8")
async def test_when_the_quota_is_gone_one_call_tries_again_after_a_pause() -> None:
    gate = Gate("openai", quota_pause=0.2)
    gate.exhausted("no money")
    refusal = StepFailure(code=FailureCode.QUOTA_EXHAUSTED, message="no money")
    assert [await gate.turn() for _ in range(5)] == [refusal] * 5
    await asyncio.sleep(0.25)
    assert [await gate.turn() for _ in range(5)] == [None, *[refusal] * 4]
    gate.answered()
    assert [await gate.turn() for _ in range(5)] == [None] * 5
    assert gate.waiting_on == ""


async def test_there_is_a_gate_for_each_provider_and_key() -> None:
    gates = Gates()
    one = gates.of(Assignment(model="openai:a", api_key="k"))
    assert gates.of(Assignment(model="openai:b", api_key="k")) is one
    assert gates.of(Assignment(model="openai:a", api_key="l")) is not one
    assert gates.of(Assignment(model="anthropic:a", api_key="k")) is not one
