"""Models that fall silent, are held back or wait long, and many at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from fanfold.model.step import FailureCode, StepPolicy
from integration import node_harness
from integration.llm_nodes import llm_agent, node_with
from integration.node_harness import eventually
from support.providers import Reply, refusal, running_provider

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's first step imports pydantic-ai, which takes long on a busy machine."""
    monkeypatch.setattr(node_harness, "PATIENCE", 90.0)


@pytest.mark.contract("C6", "F4")
async def test_a_model_that_falls_silent_stalls_and_a_slow_one_does_not(tmp_path: Path) -> None:
    """The agent's file says how long it may be silent. Each word is progress; a stream that stays open is none."""
    warm = Reply(text="warm")
    slow = Reply(text=" ".join(["word"] * 10), pace=0.6)
    agents = llm_agent(), llm_agent("watched", no_progress_timeout=3.0)
    provider_of = running_provider(warm, slow, Reply(text="It is", hangs=True))
    async with provider_of as provider, node_with(tmp_path, provider, *agents) as node:
        await node.run("thinker")  # the import of pydantic-ai is silent too
        slow_one = await node.run("watched")
        silent = await node.run("watched")
        patient = node.start("watched", policy=StepPolicy(no_progress_timeout=60.0))
        await eventually(lambda: len(provider.asked) == 4)
        assert slow_one.failure is None
        assert slow_one.ended_at is not None
        assert slow_one.started_at is not None
        assert (slow_one.ended_at - slow_one.started_at).total_seconds() > 3.0
        assert silent.failure is not None
        assert (silent.failure.code, silent.failure.message) == (FailureCode.STALLED, "no progress for 3 seconds")
        await asyncio.sleep(3.3)
        assert not patient.has_ended  # what the step says counts more than the file


@pytest.mark.contract("C6", "F4", "F9")
async def test_a_step_that_its_provider_holds_back_is_not_silent(tmp_path: Path) -> None:
    limited = refusal(429, "slower", code="rate_limit_exceeded", retry_after="5")
    provider_of = running_provider(Reply(text="warm"), limited, Reply(text="done"))
    async with provider_of as provider, node_with(tmp_path, provider, llm_agent()) as node:
        await node.run("thinker")  # the import of pydantic-ai is silent
        outcome = await node.run("thinker", policy=StepPolicy(no_progress_timeout=3.0))
    assert outcome.output == "done", outcome.failure
    assert provider.times[2] - provider.times[1] >= 4.9


async def test_fifty_steps_at_once_fit_into_half_a_gigabyte(tmp_path: Path) -> None:
    """They share a worker. Memory that processes have in common is counted once (PSS)."""
    provider_of = running_provider(Reply(text="It is forty two", hangs=True))
    async with provider_of as provider, node_with(tmp_path, provider, llm_agent()) as node:
        lives = [node.start("thinker") for _ in range(50)]
        await eventually(lambda: provider.open == 50, patience=90)
        used = sum(psutil.Process(pid).memory_full_info().pss for pid in node.processes)
        assert used < 500 * 2**20
        for life in lives:
            node.cancel(life)
        assert [(await life.outcome()).output for life in lives] == [""] * 50
        await eventually(lambda: provider.open == 0)


async def test_a_node_stops_at_once_though_a_provider_wants_a_long_pause(tmp_path: Path) -> None:
    reply = refusal(429, "slower", retry_after="120")
    async with running_provider(reply) as provider:
        async with node_with(tmp_path, provider, llm_agent()) as node:
            life = node.start("thinker")
            await eventually(lambda: provider.asked, patience=90)
            await asyncio.sleep(0.3)  # it asks for another turn, and waits
            assert not life.has_ended
            started = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - started < 10
        assert len(provider.asked) == 1
