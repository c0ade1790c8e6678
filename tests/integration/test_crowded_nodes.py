"""Nodes that several coordinators have steps on."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from coordinator.combinators.parallel import parallel
from coordinator.scope import Scope
from executor_node.app import running as running_node
from executor_node.supervisor.client import Supervision
from fanfold.model.step import AgentStepSpec
from support.adopted import Holding, Machine, Two, coordinator, held_by
from support.mesh import node_config, until

pytestmark = [pytest.mark.process, pytest.mark.contract("C19")]


@pytest.mark.contract("C10")
async def test_coordinators_share_a_nodes_hint(machine: Machine, two: Two) -> None:
    hint = two[0].mesh.nodes.hint()
    assert two[1].mesh.nodes.hint() == hint == 16
    first, second = held_by(two[0], 1), Holding(two[1], Scope(run_id="run-2", owner="o", progress=False))
    first.begin()
    await until(lambda: len(machine.lives()) == 1, "one of them has work")
    await until(lambda: two[1].mesh.nodes.hint() == 8, "the other counts with it")
    assert two[0].mesh.nodes.hint() == 16
    second.begin()
    await until(lambda: [each.mesh.nodes.hint() for each in two] == [8, 8], "both have work")
    machine.open_gate()
    await asyncio.gather(*first.tasks, *second.tasks)
    await until(lambda: [each.mesh.nodes.hint() for each in two] == [16, 16], "neither has")


@pytest.mark.contract("C45")
async def test_a_step_finds_a_place_on_a_node_that_another_coordinator_keeps_full(tmp_path: Path) -> None:
    settings = {"announce_to": [], "capacity": {"concurrency_hint": 2, "max_concurrent_steps": 2}}
    async with AsyncExitStack() as stack:
        config = node_config(tmp_path, "node-1", "127.0.0.1:1", settings)
        supervision = Supervision.spawn({"PATH": "/usr/bin:/bin"})
        node = await stack.enter_async_context(running_node(config, supervision, {}))
        machine = Machine(tmp_path, stack, node.address)
        greedy = await stack.enter_async_context(coordinator(machine, "greedy"))
        modest = await stack.enter_async_context(coordinator(machine, "modest"))
        specs = [AgentStepSpec(task_id=str(n), agent="shell", description="d", prompt="sleep 0.2") for n in range(1000)]
        many = asyncio.ensure_future(
            parallel(greedy.mesh.executor(Scope(run_id="r", owner="o", progress=False)), specs)
        )
        await until(lambda: greedy.node.standing.in_flight == 2, "the node is full")
        await until(lambda: modest.node.view().node.status.running_steps == 2, "and the other coordinator knows")
        for key in ("a", "b", "c"):
            assert (await held_by(modest, 1).outcome(key, "true")).success
        assert not many.done()
        many.cancel()
        with suppress(asyncio.CancelledError):
            await many
