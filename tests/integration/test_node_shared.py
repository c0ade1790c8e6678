"""Python agents that share a worker: what happens to the others when one misbehaves."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from executor_node.agents.builtin import BUILTIN_AGENTS
from fanfold.model.step import FailureCode, StepPolicy, StepStarted
from integration.node_harness import PATIENCE, eventually, running_node

pytestmark = pytest.mark.process


def calls(gate: Path) -> list[str]:
    """The process of each call of the agent `gated`."""
    return gate.with_suffix(".calls").read_text().split() if gate.with_suffix(".calls").exists() else []


async def test_many_steps_share_one_worker(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_node(tmp_path) as node:
        lives = [node.start("gated-shared", str(gate)) for _ in range(300)]
        await eventually(lambda: len(calls(gate)) == 300)
        gate.touch()
        outcomes = await asyncio.gather(*(life.outcome() for life in lives))
    assert {outcome.output for outcome in outcomes} == {"through"}
    assert len({outcome.session_id for outcome in outcomes}) == 300
    assert [outcome.task_id for outcome in outcomes] == [f"task-{number}" for number in range(300)]
    assert len(set(calls(gate))) == 1


async def test_steps_spread_over_the_workers_that_were_started_before(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_node(tmp_path, shared_workers=2) as node:
        node.executions.prestart()
        await eventually(lambda: len(node.processes) == 4)
        lives = [node.start("gated-shared", str(gate)) for _ in range(10)]
        await eventually(lambda: len(calls(gate)) == 10)
        gate.touch()
        await asyncio.gather(*(life.outcome() for life in lives))
        assert len(node.processes) == 4
    assert sorted(calls(gate).count(pid) for pid in set(calls(gate))) == [5, 5]


@pytest.mark.contract("F1")
async def test_a_cancelled_step_ends_alone(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_node(tmp_path) as node:
        sibling = node.start("gated-shared", str(gate))
        life = node.start("waits-shared")
        await life.first_progress()
        node.cancel(life, "enough")
        outcome = await life.outcome()
        assert outcome.failure is not None
        assert (outcome.failure.code, outcome.failure.message) == (FailureCode.CANCELLED, "enough")
        gate.touch()
        assert (await sibling.outcome()).success
    assert len(calls(gate)) == 1


@pytest.mark.contract("F1", "F2")
async def test_a_step_that_blocks_the_loop_costs_the_worker_its_life_and_siblings_run_again(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_node(tmp_path, stop_grace=0.3) as node:
        siblings = [node.start("gated-shared", str(gate)) for _ in range(3)]
        blocker = node.start("blocks-shared", f"3600 {tmp_path / 'blocks'}")
        await eventually((tmp_path / "blocks").exists)
        await eventually(lambda: len(calls(gate)) == 3)
        cancelled_at = time.monotonic()
        node.cancel(blocker)
        later = node.start("gated-shared", str(gate))
        outcome = await blocker.outcome()
        assert 0.3 <= time.monotonic() - cancelled_at < PATIENCE
        assert outcome.failure is not None
        assert outcome.failure.code is FailureCode.CANCELLED
        await eventually(lambda: len(calls(gate)) == 7)
        assert len(set(calls(gate))) == 5  # the lost one, one for each sibling, and the new one
        gate.touch()
        for life in (*siblings, later):
            assert (await life.outcome()).output == "through"
            assert sum(isinstance(event, StepStarted) for event in life.events) == 1


@pytest.mark.contract("F2")
async def test_a_step_that_blocks_its_loop_does_not_disturb_the_node(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        life = node.start("blocks-shared", "1.0")
        await life.first_progress()
        turns = 0
        while not life.has_ended:
            await asyncio.sleep(0.01)
            turns += 1
            assert node.executions.status().running_steps <= 1
        outcome = await life.outcome()
        assert (await node.run("plain")).success
    assert outcome.output == "unblocked"
    assert outcome.attempts == 1
    assert turns >= 10, "the node's own loop went on all the while"


@pytest.mark.contract("C3", "F4")
async def test_a_worker_that_dies_twice_under_a_step_ends_it_but_not_those_that_come_later(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_node(tmp_path) as node:
        dying = node.start("dies-shared")
        outcome = await dying.outcome()
        assert outcome.failure is not None
        assert outcome.failure.code is FailureCode.CRASHED
        assert outcome.failure.retryable
        assert "SIGSEGV" in outcome.failure.message
        gate.touch()
        assert (await node.run("gated-shared", str(gate))).success


async def test_siblings_of_a_worker_that_died_once_run_again_and_are_told_nothing(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_node(tmp_path) as node:
        lives = [node.start("gated-shared", str(gate)) for _ in range(20)]
        await eventually(lambda: len(calls(gate)) == 20)
        worker = int(calls(gate)[0])
        os.kill(worker, signal.SIGKILL)
        await eventually(lambda: len(calls(gate)) == 40)
        gate.touch()
        outcomes = await asyncio.gather(*(life.outcome() for life in lives))
    assert all(outcome.success and outcome.attempts == 1 for outcome in outcomes)


@pytest.mark.contract("C12")
async def test_of_many_steps_only_those_that_kill_their_worker_have_crashed(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_node(tmp_path) as node:
        fatal = [node.start("dies_when_let_through-shared", str(tmp_path / "fatal")) for _ in range(2)]
        lives = [node.start("gated-shared", str(gate)) for _ in range(10)]
        await eventually(lambda: len(calls(gate)) == 10)
        (tmp_path / "fatal").touch()
        for life in fatal:
            failure = (await life.outcome()).failure
            assert failure is not None
            assert (failure.code, failure.retryable) == (FailureCode.CRASHED, True)
            assert "SIGKILL: out of luck" in failure.message
        await eventually(lambda: len(calls(gate)) == 20)
        late = node.start("gated-shared", str(gate))
        await eventually(lambda: len(calls(gate)) == 21)
        gate.touch()
        outcomes = await asyncio.gather(*(life.outcome() for life in (*lives, late)))
        assert len(node.processes) == 2  # the worker that steps share, and its launcher
    assert all(outcome.success and outcome.output == "through" for outcome in outcomes)
    suspects = calls(gate)[10:20]
    assert len(set(suspects)) == len(suspects)
    assert calls(gate)[20] not in suspects


@pytest.mark.contract("C12")
async def test_a_suspect_that_runs_apart_can_be_cancelled_and_can_time_out(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_node(tmp_path) as node:
        cancelled = node.start("gated-shared", str(gate))
        timed_out = node.start("gated-shared", str(gate), policy=StepPolicy(timeout=2.0))
        await eventually(lambda: len(calls(gate)) == 2)
        os.kill(int(calls(gate)[0]), signal.SIGKILL)
        await eventually(lambda: len(calls(gate)) == 4)
        node.cancel(cancelled)
        outcomes = [await cancelled.outcome(), await timed_out.outcome()]
        assert not node.processes
    assert [o.failure and o.failure.code for o in outcomes] == [FailureCode.CANCELLED, FailureCode.TIMED_OUT]


@pytest.mark.contract("C12")
async def test_a_hostile_agent_does_not_hold_up_the_built_in_ones(tmp_path: Path) -> None:
    async with running_node(tmp_path, BUILTIN_AGENTS["noop"]) as node:
        node.executions.prestart()
        blocker = node.start("blocks-shared", f"3600 {tmp_path / 'blocks'}")
        await eventually((tmp_path / "blocks").exists)
        assert (await node.run("noop", "hello")).output == "hello"
        assert not blocker.has_ended


@pytest.mark.contract("F4")
async def test_a_deadline_ends_a_step_that_blocks_its_worker(tmp_path: Path) -> None:
    async with running_node(tmp_path, stop_grace=0.2) as node:
        outcome = await node.run("blocks-shared", "3600", policy=StepPolicy(timeout=0.3))
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.TIMED_OUT


async def test_steps_in_different_workers_do_not_block_each_other(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    async with running_node(tmp_path, shared_workers=2) as node:
        blocker = node.start("blocks-shared", f"3600 {tmp_path / 'blocks'}")
        await eventually((tmp_path / "blocks").exists)
        assert (await node.run("gated-shared", str(gate))).success
        assert not blocker.has_ended


@pytest.mark.contract("C9")
async def test_a_shared_worker_that_talks_nonsense_is_replaced(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_node(tmp_path) as node:
        for liar, prompt in [("lies-shared", '[["tool", 1, 7]]'), ("boasts-shared", "-"), ("hangs_up-shared", "-")]:
            failure = (await node.run(liar, prompt)).failure
            assert failure is not None
            assert failure.code is FailureCode.CRASHED
            assert failure.retryable
        gate.touch()
        assert (await node.run("gated-shared", str(gate))).success


@pytest.mark.contract("C12", "C3")
@pytest.mark.parametrize(
    ("agent", "prompt", "code", "message"),
    [
        ("wrong_usage-shared", "1.5", FailureCode.CRASHED, "wrong usage"),
        ("wrong_usage-shared", "mapping", FailureCode.CRASHED, "wrong usage"),
        ("gives_up_oddly-shared", "-", FailureCode.AGENT_FAILED, "the oracle is silent"),
        ("lies-shared", '[["end", 2, "x", null, [1.5, 0, 0], [], null]]', FailureCode.CRASHED, "makes no sense"),
        ("lies-shared", '[["end", 2, 7]]', FailureCode.CRASHED, "makes no sense"),
    ],
)
async def test_a_slip_of_an_agent_is_the_end_of_its_step_and_of_no_other(
    tmp_path: Path, agent: str, prompt: str, code: FailureCode, message: str
) -> None:
    gate = tmp_path / "gate"
    async with running_node(tmp_path) as node:
        sibling = node.start("gated-shared", str(gate))
        await eventually(lambda: len(calls(gate)) == 1)
        failure = (await node.run(agent, prompt)).failure
        assert failure is not None
        assert failure.code is code
        assert message in failure.message
        assert node.executions.status().running_steps == 1
        gate.touch()
        assert (await sibling.outcome()).success
    assert len(calls(gate)) == 1


@pytest.mark.contract("F11")
@pytest.mark.parametrize(
    ("agent", "prompt"),
    [
        ("belittles-shared", "1001"),
        ("belittles", "1001"),
        ("lies-shared", f'[["end", 1, "{"x" * 1001}"]]'),
        ("lies-shared", f'[["end", 1, "{"x" * 1001}", null, [0, 0, 0], [], ["CRASHED", "-", true]]]'),
        ("lies", f'[["end", 0, "{"x" * 1001}"]]'),
    ],
)
async def test_output_above_the_limit_is_cut_whatever_the_worker_says(tmp_path: Path, agent: str, prompt: str) -> None:
    async with running_node(tmp_path, output_bytes=1000) as node:
        outcome = await node.run(agent, prompt)
    assert outcome.output == "x" * 1000
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.retryable) == (FailureCode.PAYLOAD_TOO_LARGE, False)


@pytest.mark.contract("C12")
async def test_text_larger_than_any_frame_costs_the_worker_nothing(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_node(tmp_path) as node:
        sibling = node.start("gated-shared", str(gate))
        await eventually(lambda: len(calls(gate)) == 1)
        assert (await node.run("shouts-shared")).output == "shouted"
        gate.touch()
        assert (await sibling.outcome()).success
    assert len(calls(gate)) == 1
