"""A greedy caller's steps hold up nobody else's: told by the order in which a node began them, not by time (C45)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from coordinator.config import Limits
from coordinator.placement.mesh import Mesh as PlacingMesh
from coordinator.placement.nodes import Nodes
from coordinator.placement.queue import Patience, PlacementQueue
from coordinator.runs.checks import RequestChecks
from coordinator.runs.opening import Opening
from coordinator.runs.runs import Runs
from executor_node.app import running as running_node
from executor_node.supervisor.client import Supervision
from fanfold.clients.node_link import GrpcNodeDialer
from fanfold.model.run import RunStepEvent, WaitingChanged
from fanfold.model.step import StepEnded, StepOutcome
from fanfold.model.validation import parse_specs
from fanfold.schema import SchemaValidator
from fanfold.wire.run import event_from_bytes
from support.mesh import node_config, running_mesh, until

pytestmark = [pytest.mark.process, pytest.mark.contract("C45")]

PLACES = 64
CAPACITY = {"capacity": {"concurrency_hint": 1000, "max_concurrent_steps": PLACES}}
"""Far more steps of a run wait for a place than there are places."""


def steps(count: int) -> list[dict[str, Any]]:
    """Steps that tell how many were begun before them, once the workspace has a file `open`."""
    return [{"task_id": str(n), "agent": "takes-number", "description": "d", "prompt": str(n)} for n in range(count)]


def numbers(outcomes: Sequence[StepOutcome]) -> list[int]:
    """How many were begun before each of them, least first."""
    assert all(outcome.success for outcome in outcomes)
    return sorted(int(outcome.output) for outcome in outcomes)


async def test_a_single_step_and_a_small_run_take_turns_with_a_great_one(tmp_path: Path) -> None:
    async with running_mesh(tmp_path, node=CAPACITY, coordinator={"placement": {}}) as running:
        mesh = running.mesh
        greedy = asyncio.ensure_future(mesh.parallel(steps(20_000)))
        async with asyncio.timeout(60):
            while [view.steps_in_flight for view in await mesh.nodes()] != [PLACES]:
                await asyncio.sleep(0.01)
        single = asyncio.ensure_future(mesh.execute(*steps(1)))
        small = mesh.parallel(steps(10))
        run = asyncio.ensure_future(small)
        await until(lambda: "is full" in small.waiting_on, "the small run waits for a place")
        (tmp_path / "open").touch()
        async with asyncio.timeout(60):
            of_single, of_small = numbers([await single]), numbers(await run)
            assert not greedy.done()
            of_greedy = numbers(await greedy)
    assert sorted(of_greedy + of_single + of_small) == list(range(20_011)), "every step was begun once"
    # The great run's first steps have all places. Who waits is passed over once a round at most by each of the others.
    assert of_single[0] <= PLACES + 2
    for turn, number in enumerate(of_small):
        assert number <= PLACES + 2 + 2 * turn


@dataclass
class Caller:
    """Somebody who has a run, and what was heard of it."""

    owner: str
    count: int
    outcomes: list[StepOutcome] = field(default_factory=list)
    waits: bool = False

    async def call(self, runs: Runs) -> None:
        async with runs.parallel(Opening(owner=self.owner), parse_specs(steps(self.count))) as source:
            while events := await source.read():
                for told in events:
                    event = event_from_bytes(told) if isinstance(told, bytes) else told
                    self.waits |= isinstance(event, WaitingChanged) and "is full" in event.waiting_on
                    if isinstance(event, RunStepEvent) and isinstance(event.event, StepEnded):
                        self.outcomes.append(event.event.outcome)


@asynccontextmanager
async def runs_on_a_node(workspace: Path) -> AsyncIterator[Runs]:
    """Runs as a coordinator holds them, over a real node; owners are told by their caller, who need be nobody real."""
    async with AsyncExitStack() as stack:
        config = node_config(workspace, "node-1", "", {"announce_to": [], **CAPACITY})
        supervision = Supervision.spawn({"PATH": "/usr/bin:/bin"})
        node = await stack.enter_async_context(running_node(config, supervision, {}))
        validator = await stack.enter_async_context(SchemaValidator())
        nodes = await stack.enter_async_context(Nodes(GrpcNodeDialer("coordinator")))
        nodes.want(node.address)
        await until(lambda: nodes.hint() > 0, "the node is ready")
        mesh = PlacingMesh(nodes, PlacementQueue(nodes, Patience()), validator)
        yield Runs(mesh.executor, RequestChecks(validator, Limits()))


async def test_owners_take_turns_however_many_runs_one_of_them_has(tmp_path: Path) -> None:
    greedy = [Caller("greedy", 500) for _ in range(4)]
    modest = Caller("modest", 10)
    async with runs_on_a_node(tmp_path) as runs, asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for caller in greedy:
            tasks.create_task(caller.call(runs))
        # The one that came first has all places.
        await until(lambda: [caller.waits for caller in greedy].count(True) == 3, "the greedy runs wait for places")
        tasks.create_task(modest.call(runs))
        await until(lambda: modest.waits, "the modest run waits for a place")
        (tmp_path / "open").touch()
    of_greedy = [number for caller in greedy for number in numbers(caller.outcomes)]
    assert sorted(of_greedy + numbers(modest.outcomes)) == list(range(2010))
    for turn, number in enumerate(numbers(modest.outcomes)):
        assert number <= PLACES + 1 + 2 * turn
