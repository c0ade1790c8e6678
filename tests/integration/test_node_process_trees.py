"""Process trees: what a step started is gone when the step has ended, however it ended, and whoever was killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from executor_node.supervisor import linux
from fanfold.errors import ResourceExhausted
from fanfold.model.step import FailureCode, StepPolicy
from integration.node_harness import NodeUnderTest, eventually, find_processes, is_alive, new_marker, running_node

pytestmark = pytest.mark.process

DAEMONS = """
for n in 1 2 3; do (setsid sh -c 'setsid sleep {marker} & setsid nohup sleep {marker} >/dev/null 2>&1 &') & done
sh -c 'trap "" TERM INT HUP; sleep {marker}; sleep {marker}' &
until [ "$(pgrep -f 'sleep {marker}' | wc -l)" -ge 7 ]; do sleep 0.01; done
"""


@pytest.mark.contract("F1", "F17")
async def test_daemons_that_a_step_leaves_are_gone_when_it_has_ended(tmp_path: Path) -> None:
    marker = new_marker()
    async with running_node(tmp_path) as node:
        for agent, prompt in [("shell", DAEMONS.format(marker=marker) + "echo left"), ("leaves_daemons", marker)]:
            outcome = await node.run(agent, prompt)
            assert outcome.output.strip() == "left"
            assert not find_processes(marker)
            assert not node.processes


@pytest.mark.contract("F1", "C3")
async def test_daemons_are_gone_when_a_cancelled_step_has_ended(tmp_path: Path) -> None:
    marker = new_marker()
    async with running_node(tmp_path) as node:
        for agent, prompt in [
            ("shell", DAEMONS.format(marker=marker) + "echo left; sleep 3600"),
            ("leaves_daemons_and_waits", marker),
        ]:
            life = node.start(agent, prompt)
            await life.first_progress()
            await eventually(lambda: find_processes(marker))
            node.cancel(life, "changed my mind")
            node.cancel(life, "a second reason")
            outcome = await life.outcome()
            assert not find_processes(marker)
            assert not node.processes
            assert outcome.failure is not None
            assert (outcome.failure.code, outcome.failure.message) == (FailureCode.CANCELLED, "changed my mind")


@pytest.mark.contract("F1", "F4", "C6")
async def test_daemons_are_gone_when_a_step_has_timed_out(tmp_path: Path) -> None:
    marker = new_marker()
    async with running_node(tmp_path) as node:
        prompt = DAEMONS.format(marker=marker) + "sleep 3600"
        life = node.start("shell", prompt, policy=StepPolicy(timeout=1.0))
        await eventually(lambda: find_processes(marker) or life.has_ended)
        outcome = await life.outcome()
        assert not find_processes(marker)
        assert not node.processes
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.TIMED_OUT


@pytest.mark.contract("F1")
async def test_a_hundred_cancels_leak_no_process(tmp_path: Path) -> None:
    marker = new_marker()
    async with running_node(tmp_path) as node:
        lives = [node.start("shell", f"setsid sleep {marker} & sleep {marker} & wait") for _ in range(50)]
        lives += [node.start("leaves_daemons_and_waits", marker) for _ in range(50)]
        for number, life in enumerate(lives):
            if number % 3:  # a third is cancelled before it has even been forked
                await life.first_progress() if number >= 50 else await asyncio.sleep(0.002)
            node.cancel(life)
        outcomes = await asyncio.gather(*(life.outcome() for life in lives))
        assert not find_processes(marker)
        assert not node.processes
        assert node.executions.status().running_steps == 0
    assert all(o.failure and o.failure.code is FailureCode.CANCELLED for o in outcomes)


@pytest.mark.contract("F1")
async def test_two_hundred_running_steps_are_gone_soon_after_their_cancel(tmp_path: Path) -> None:
    marker = new_marker()
    async with running_node(tmp_path) as node:
        lives = [node.start("shell", f"exec sleep {marker}") for _ in range(200)]
        await eventually(lambda: len(find_processes(marker)) == 200)
        for life in lives:
            node.cancel(life)
        await asyncio.gather(*(life.outcome() for life in lives))
        assert not find_processes(marker)


@pytest.mark.contract("F1")
async def test_a_step_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    async with running_node(tmp_path, stop_grace=0.5) as node:
        for agent, prompt in [("shell", "trap '' TERM; echo began; sleep 3600; sleep 3600"), ("will_not_stop", "-")]:
            life = node.start(agent, prompt)
            await life.first_progress()
            cancelled_at = time.monotonic()
            node.cancel(life)
            await life.outcome()
            assert time.monotonic() - cancelled_at >= 0.5
            assert not node.processes


@pytest.mark.contract("F1")
async def test_a_stopped_process_hears_that_it_shall_end(tmp_path: Path) -> None:
    async with running_node(tmp_path, stop_grace=60) as node:
        life = node.start("shell", "echo began; kill -STOP $$")
        await life.first_progress()
        node.cancel(life)
        await life.outcome()
        assert not node.processes


@pytest.mark.contract("F1")
async def test_a_cancel_right_after_the_start_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    async with running_node(tmp_path, stop_grace=60) as node:
        for agent in ("shell", "waits") * 3:
            life = node.start(agent, "sleep 3600")
            node.cancel(life)
            await life.outcome()
        assert not node.processes


@pytest.mark.contract("F1")
async def test_a_step_that_stops_its_launcher_is_ended_all_the_same(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        life = node.start("stops_its_launcher")
        await life.first_progress()
        node.cancel(life)
        outcome = await life.outcome()
        assert outcome.failure is not None
        assert outcome.failure.code is FailureCode.CANCELLED
        assert not node.processes


@pytest.mark.contract("F1", "F17")
async def test_a_step_whose_launcher_is_killed_has_crashed_and_leaves_nothing(tmp_path: Path) -> None:
    marker = new_marker()
    async with running_node(tmp_path) as node:
        bystander = node.start("shell", "echo began; read line; sleep 0.5; echo unharmed")
        outcome = await node.run("kills_its_launcher", marker)
        assert not find_processes(marker)
        assert len(node.processes) <= 3  # the bystander's
        assert (await bystander.outcome()).output == "began\nunharmed\n"
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.CRASHED
    assert "SIGKILL" in outcome.failure.message


@pytest.mark.contract("F24", "C10")
async def test_a_slot_is_free_when_the_processes_are_gone_and_not_before(tmp_path: Path) -> None:
    async with running_node(tmp_path, max_concurrent_steps=2, stop_grace=0.6) as node:
        stubborn = node.start("will_not_stop")
        await stubborn.first_progress()
        other = node.start("waits")
        await other.first_progress()
        with pytest.raises(ResourceExhausted) as refusal:
            node.start("plain")
        assert refusal.value.retry_delay is not None
        assert 0 < refusal.value.retry_delay <= 5
        node.cancel(stubborn)
        await asyncio.sleep(0.3)
        assert node.processes
        with pytest.raises(ResourceExhausted):
            node.start("plain")
        await stubborn.outcome()
        assert node.executions.status().running_steps == 1
        assert (await node.run("plain")).success
        node.cancel(other)
        await other.outcome()
        assert node.executions.status().running_steps == 0


async def _start_trees(node: NodeUnderTest, marker: str) -> None:
    for _ in range(3):
        node.start("shell", DAEMONS.format(marker=marker) + "sleep 3600")
    node.start("leaves_daemons_and_waits", marker)
    await node.start("waits-shared").first_progress()
    await eventually(lambda: len(find_processes(marker)) >= 24)


@pytest.mark.contract("F17")
async def test_when_the_supervisor_is_killed_everything_is_gone_and_every_step_ends(tmp_path: Path) -> None:
    marker = new_marker()
    async with running_node(tmp_path) as node:
        await _start_trees(node, marker)
        family = node.processes
        os.kill(node.supervision.supervisor_pid, signal.SIGKILL)
        outcomes = [await life.outcome() for life in node.lives]
        await eventually(lambda: not find_processes(marker))
        await eventually(lambda: not any(map(is_alive, family)))
        assert node.executions.status().draining
    assert {o.failure and o.failure.code for o in outcomes} == {FailureCode.NODE_LOST}
    assert all(o.failure and o.failure.retryable for o in outcomes[:3])


@pytest.mark.contract("F17")
async def test_launchers_that_are_stopped_end_as_well_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    marker = new_marker()
    async with running_node(tmp_path) as node:
        await _start_trees(node, marker)
        supervisor = node.supervision.supervisor_pid
        os.kill(supervisor, signal.SIGSTOP)  # or it would have them go on at once
        launchers = [child.pid for child in psutil.Process(supervisor).children()]
        assert launchers
        for pid in launchers:
            os.kill(pid, signal.SIGSTOP)
        os.kill(supervisor, signal.SIGKILL)
        await eventually(lambda: not find_processes(marker))
        await eventually(lambda: not any(map(is_alive, launchers)))


@pytest.mark.contract("F17")
async def test_leaving_the_node_ends_everything(tmp_path: Path) -> None:
    marker = new_marker()
    async with running_node(tmp_path) as node:
        await _start_trees(node, marker)
        supervisor = node.supervision.supervisor_pid
    assert not find_processes(marker)
    assert not linux.descendants_of(supervisor)
    assert not Path(f"/proc/{supervisor}").exists()
    failures = [(await life.outcome()).failure for life in node.lives]
    assert {failure and failure.code for failure in failures} == {FailureCode.NODE_LOST}
    assert all(failure and failure.retryable for failure in failures)


@pytest.mark.contract("F3", "F17", "C3")
async def test_a_supervisor_that_hangs_is_killed_and_every_step_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = linux.send
    monkeypatch.setattr(linux, "send", lambda pid, number: None if number == signal.SIGCONT else send(pid, number))
    marker = new_marker()
    async with running_node(tmp_path, silence_limit=4.0) as node:
        await _start_trees(node, marker)
        family = node.processes
        os.kill(node.supervision.supervisor_pid, signal.SIGSTOP)  # and nothing wakes it: as good as hung
        outcomes = [await life.outcome() for life in node.lives]
        await eventually(lambda: not find_processes(marker))
        await eventually(lambda: not any(map(is_alive, family)))
        assert node.supervision.lost
        assert node.executions.status().draining
    assert {o.failure and o.failure.code for o in outcomes} == {FailureCode.NODE_LOST}


@pytest.mark.contract("F1", "F3")
async def test_a_step_that_stops_its_launcher_ends_when_it_has_ended(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        async with asyncio.timeout(5):
            outcome = await node.run("shell", "kill -STOP $PPID; echo done; kill -STOP $PPID")
        assert outcome.output == "done\n"
        assert outcome.success
        assert not node.processes
