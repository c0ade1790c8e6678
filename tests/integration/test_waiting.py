"""What a run waits on is told while nothing moves (C42, F3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from executor_node.app import running as running_node
from executor_node.supervisor.client import Supervision
from fanfold import Mesh
from fanfold.clients.coordinator import CoordinatorClient
from fanfold.model.run import RunStarted, RunStepEvent, WaitingChanged
from fanfold.model.step import StepEnded
from fanfold.model.validation import parse_specs
from support.mesh import RunningMesh, coordinator_alone, events_of, node_config, running_mesh, until, until_ready
from support.proxy import proxied

pytestmark = [pytest.mark.process, pytest.mark.contract("C42", "F3")]


def step(task_id: str, agent: str = "noop", prompt: str = "x", **policy: object) -> dict[str, object]:
    return {"task_id": task_id, "agent": agent, "description": "d", "prompt": prompt, "policy": policy}


async def told(address: str, steps: list[dict[str, object]], count: int) -> list[str]:
    """The first `count` things that a run says it waits on; then it is cancelled."""
    words: list[str] = []
    sequence = 0
    async with CoordinatorClient(address) as client, aclosing(events_of(client.parallel(parse_specs(steps)))) as events:
        async with asyncio.timeout(30):
            async for event in events:
                assert event.sequence > sequence
                sequence = event.sequence
                if isinstance(event, WaitingChanged):
                    words.append(event.waiting_on)
                if len(words) == count:
                    break
    return words


@pytest.fixture
async def full(tmp_path: Path) -> AsyncIterator[RunningMesh]:
    capacity = {"concurrency_hint": 1, "max_concurrent_steps": 1}
    async with running_mesh(tmp_path, node={"capacity": capacity}, coordinator={"placement": {}}) as running:
        yield running


async def test_a_missing_label_is_told_at_once_and_not_only_when_the_bound_has_passed(full: RunningMesh) -> None:
    (words,) = await told(full.coordinator.address, [step("a", node_labels={"zone": "moon"})], 1)
    assert words == "a place: no live node that offers agent 'noop' carries the labels zone=moon"


async def test_full_nodes_are_told_until_there_is_room(full: RunningMesh) -> None:
    holder = asyncio.ensure_future(full.mesh.parallel([step("long", "sleep", "2")]))
    async with asyncio.timeout(20):
        while [view.steps_in_flight for view in await full.mesh.nodes()] != [1]:
            await asyncio.sleep(0.01)
    words = await told(full.coordinator.address, [step("b", "sleep", "600")], 2)
    assert words == ["a place: every node that offers agent 'sleep' is full", ""]
    assert (await holder)[0].success


async def test_the_pause_before_another_attempt_is_told(tmp_path: Path) -> None:
    placement = {"retry_first": 30, "retry_most": 30}
    async with running_mesh(tmp_path, coordinator={"placement": placement}) as running:
        (words,) = await told(running.coordinator.address, [step("a", "gives-up", max_attempts=9)], 1)
    assert words == "another attempt, after a pause"


async def test_a_run_whose_steps_move_waits_on_nothing(full: RunningMesh) -> None:
    steps = parse_specs([step(str(n), "sleep", "0.3") for n in range(4)])
    async with CoordinatorClient(full.coordinator.address) as client:
        kinds = [type(event) async for event in events_of(client.parallel(steps))]
    assert WaitingChanged not in kinds


async def test_the_lease_of_a_lost_node_is_told_and_when_the_node_is_back(tmp_path: Path) -> None:
    config = node_config(tmp_path, "node-1", "127.0.0.1:1", {"announce_to": []})
    async with (
        running_node(config, Supervision.spawn({"PATH": "/usr/bin:/bin"}), {}) as node,
        proxied(node.address) as proxy,
        coordinator_alone(nodes={"static": [proxy.address], "redial_delay": 0.2, "lease": 20}) as coordinator,
        Mesh(coordinator.address) as mesh,
        CoordinatorClient(coordinator.address) as client,
    ):
        await until_ready(mesh, 1)
        words: list[str] = []
        ended: list[bool] = []

        async def follow() -> None:
            specs = parse_specs([step("a", "shell", "touch began; sleep 4")])
            async for event in events_of(client.parallel(specs)):
                if isinstance(event, WaitingChanged):
                    words.append(event.waiting_on)
                elif isinstance(event, RunStepEvent) and isinstance(event.event, StepEnded):
                    ended.append(event.event.outcome.success)
                else:
                    assert isinstance(event, RunStarted) or ended

        following = asyncio.ensure_future(follow())
        await until((tmp_path / "began").exists, "the step runs")
        proxy.hold_up()
        proxy.cut()
        await until(lambda: bool(words), "the run says what it waits on")
        proxy.heal()
        await asyncio.wait_for(following, 30)
    assert words == ["node node-1, whose link is down, or the end of its lease", ""]
    assert ended == [True]
