"""Prompts and outputs of 50 MB on a node: they get through whole, and keep no sibling waiting."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from executor_node.agents.command.definition import PromptBy
from fanfold.model.step import FailureCode
from integration.node_harness import Life, command_agent, eventually, running_node

pytestmark = [pytest.mark.process, pytest.mark.contract("F11")]

LIMIT = 64 * 2**20
LARGE = "0123456789" * 5_000_000
NOT_ASCII = "aé漢😀" * 1_000_000
CAT = command_agent("cat", "/bin/cat", prompt=PromptBy.STDIN)


@pytest.mark.parametrize("agent", ["echoes", "echoes-shared", "cat"])
@pytest.mark.parametrize("text", [LARGE, NOT_ASCII], ids=["ascii", "not ascii"])
async def test_large_texts_get_through_whole(tmp_path: Path, agent: str, text: str) -> None:
    async with running_node(tmp_path, CAT, prompt_bytes=LIMIT, output_bytes=LIMIT) as node:
        outcome = await node.run(agent, text)
    assert outcome.failure is None
    assert outcome.output == text


async def test_small_steps_overtake_large_texts_on_the_way_to_their_worker_and_back(tmp_path: Path) -> None:
    ended: list[str] = []
    async with running_node(tmp_path, prompt_bytes=LIMIT, output_bytes=LIMIT) as node:

        async def run(name: str, text: str) -> None:
            assert (await node.run("echoes-shared", text)).output == text
            ended.append(name)

        async with asyncio.TaskGroup() as tasks:
            for name, text in [("large", LARGE), ("another", LARGE[::-1])]:
                tasks.create_task(run(name, text))
            for _ in range(50):
                tasks.create_task(run("small", "x" * 60_000))
    assert ended[:50] == ["small"] * 50
    assert sorted(ended[50:]) == ["another", "large"]


@pytest.mark.contract("C3")
@pytest.mark.parametrize("agent", ["echoes", "echoes-shared"])
async def test_an_output_beyond_the_limit_is_cut_and_told_so(tmp_path: Path, agent: str) -> None:
    async with running_node(tmp_path, prompt_bytes=LIMIT, output_bytes=10_000_000) as node:
        outcome = await node.run(agent, LARGE)
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.retryable) == (FailureCode.PAYLOAD_TOO_LARGE, False)
    assert "larger than 10,000,000 bytes" in outcome.failure.message
    assert outcome.output == LARGE[:10_000_000]


@pytest.mark.contract("F1")
async def test_a_step_whose_prompt_is_still_on_its_way_is_cancelled_at_once_and_never_runs(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_node(tmp_path, prompt_bytes=LIMIT, output_bytes=LIMIT, stop_grace=60) as node:
        sibling = node.start("gated-shared", str(gate))
        calls = gate.with_suffix(".calls")
        await eventually(lambda: calls.exists() and calls.read_text().strip())
        worker = int(calls.read_text())
        os.kill(worker, signal.SIGSTOP)  # it reads nothing of the prompt beyond what the socket holds
        try:
            large = node.start("echoes-shared", LARGE)
            await asyncio.sleep(0.2)
            node.cancel(large, "enough")
            assert failure_of(large) is FailureCode.CANCELLED
        finally:
            os.kill(worker, signal.SIGCONT)
        gate.touch()
        assert (await sibling.outcome()).success
        assert (await node.run("echoes-shared", LARGE)).output == LARGE, "what was left of the prompt is gone"
    assert calls.read_text().split() == [str(worker)]


def failure_of(life: Life) -> FailureCode | None:
    """How a step has failed that has ended by now."""
    assert life.has_ended
    outcome = life.events[-1].outcome  # type: ignore[union-attr]  # the last event is its end
    return outcome.failure.code if outcome.failure else None
