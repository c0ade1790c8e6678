"""Links that break and nodes that vanish: what runs is taken up again, and never runs beside itself (F2, F3, F18)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest

from executor_node.app import running as running_node
from executor_node.supervisor.client import Supervision
from fanfold import Mesh
from fanfold.model.step import AttemptStarted, FailureCode, StepEvent, StepProgressed
from support.mesh import coordinator_alone, node_config, until, until_ready
from support.proxy import Proxy, proxied

pytestmark = pytest.mark.process

LEASE, GRACE, MARGIN = 1.5, 1.5, 0.5
SILENCE = 2.0
NO_COORDINATOR = "127.0.0.1:1"


@dataclass(frozen=True, slots=True)
class Partitionable:
    """A mesh whose coordinator reaches each node through a proxy."""

    mesh: Mesh
    proxies: dict[str, Proxy]
    workspace: Path

    async def node_of_the_step(self) -> str:
        """Where the one running step runs."""
        async with asyncio.timeout(20):
            while True:
                for view in await self.mesh.nodes():
                    if view.steps_in_flight:
                        return view.node.name
                await asyncio.sleep(0.01)

    def lives(self) -> list[list[str]]:
        """The lines that the executions wrote."""
        file = self.workspace / "life"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


@asynccontextmanager
async def partitionable(workspace: Path, nodes: int) -> AsyncIterator[Partitionable]:
    async with AsyncExitStack() as stack:
        proxies = {}
        for number in range(1, nodes + 1):
            config = node_config(workspace, f"node-{number}", NO_COORDINATOR, {"announce_to": []})
            node = await stack.enter_async_context(
                running_node(config, Supervision.spawn({"PATH": "/usr/bin:/bin"}), {})
            )
            proxies[config.name] = await stack.enter_async_context(proxied(node.address))
        sources = {
            "static": [proxy.address for proxy in proxies.values()],
            "silence": SILENCE,
            "redial_delay": 0.2,
            "lease": LEASE,
            "lease_grace": GRACE,
            "lease_margin": MARGIN,
        }
        placement = {"retry_first": 0.05, "retry_most": 0.1, "unplaceable": 20}
        coordinator = await stack.enter_async_context(coordinator_alone(nodes=sources, placement=placement))
        mesh = await stack.enter_async_context(Mesh(coordinator.address))
        await until_ready(mesh, nodes)
        yield Partitionable(mesh, proxies, workspace)


def step(seconds: float, **policy: object) -> dict[str, object]:
    """A step that notes when it began and ended, and meanwhile, twenty times a second, that it is alive."""
    beats = round(seconds * 20)
    command = (
        'echo "start $$ $(date +%s.%N)" >> life; i=0; '
        f"while [ $i -lt {beats} ]; do date +%s.%N > new-$$; mv new-$$ beat-$$; sleep 0.05; i=$((i+1)); done; "
        'echo "end $$ $(date +%s.%N)" >> life; echo done'
    )
    return {"task_id": "t", "agent": "shell", "description": "d", "prompt": command, "policy": policy}


@pytest.mark.contract("C6", "F2")
@pytest.mark.parametrize("times", [1, 3])
async def test_a_step_goes_on_when_its_link_breaks_and_is_taken_up_again(tmp_path: Path, times: int) -> None:
    async with partitionable(tmp_path, 1) as parted:
        run = asyncio.ensure_future(parted.mesh.parallel([step(3)]))
        await until(lambda: len(parted.lives()) == 1, "the step runs")
        for _ in range(times):
            parted.proxies["node-1"].cut()
            await asyncio.sleep(0.3)
        (outcome,) = await asyncio.wait_for(run, 30)
    assert outcome.success, outcome.failure
    assert outcome.attempts == 1
    assert outcome.output == "done\n"
    assert [life[0] for life in parted.lives()] == ["start", "end"]


@pytest.mark.contract("F2", "F18")
async def test_a_partition_that_heals_within_the_lease_costs_nothing(tmp_path: Path) -> None:
    async with partitionable(tmp_path, 1) as parted:
        run = asyncio.ensure_future(parted.mesh.parallel([step(2.5)]))
        await until(lambda: len(parted.lives()) == 1, "the step runs")
        parted.proxies["node-1"].hold_up()
        await asyncio.sleep(LEASE / 2)
        parted.proxies["node-1"].heal()
        (outcome,) = await asyncio.wait_for(run, 30)
    assert outcome.success, outcome.failure
    assert outcome.attempts == 1
    assert [life[0] for life in parted.lives()] == ["start", "end"]


@pytest.mark.contract("F18")
@pytest.mark.parametrize("broken", ["cut", "held up"])
async def test_a_link_that_ended_leaves_no_connection_behind(tmp_path: Path, broken: str) -> None:
    async with partitionable(tmp_path, 1) as parted:
        proxy = parted.proxies["node-1"]
        before = connections_to(proxy.address)
        for _ in range(2):
            if broken == "cut":
                proxy.cut()
            else:
                proxy.hold_up()
                await until(partial(_are_closed, before, proxy.address), "what is silent is closed")
                proxy.heal()
            await until(partial(_are_closed, before, proxy.address), "what is broken is closed")
            await until_ready(parted.mesh, 1)
            before = connections_to(proxy.address)
            assert len(before) == 1


def connections_to(address: str) -> set[int]:
    """Ports from which this process is connected to an address."""
    port = int(address.rpartition(":")[2])
    connections = psutil.Process().net_connections("tcp")
    return {each.laddr.port for each in connections if each.raddr and each.raddr.port == port}


def _are_closed(connections: set[int], address: str) -> bool:
    return connections.isdisjoint(connections_to(address))


@pytest.mark.contract("C6", "C11", "F2", "F3", "F18")
async def test_a_step_of_a_vanished_node_runs_elsewhere_and_never_beside_itself(tmp_path: Path) -> None:
    async with partitionable(tmp_path, 2) as parted:
        events: list[StepEvent] = []
        run = asyncio.ensure_future(parted.mesh.parallel([step(4)], on_event=events.append))
        await until(lambda: len(parted.lives()) == 1, "the step runs")
        first = await parted.node_of_the_step()
        parted.proxies[first].hold_up()
        (outcome,) = await asyncio.wait_for(run, 60)
        parted.proxies[first].heal()
    assert outcome.success, outcome.failure
    assert outcome.attempts == 2
    assert outcome.node != first
    lives = parted.lives()
    assert [life[0] for life in lives] == ["start", "start", "end"]
    (_, pid, _), (_, _, second_began), _ = lives
    last_beat = float((tmp_path / f"beat-{pid}").read_text())
    assert last_beat < float(second_began), "the first execution was still alive when the second began"
    (again,) = [e.progress for e in events if isinstance(e, StepProgressed) and isinstance(e.progress, AttemptStarted)]
    assert (again.attempt, again.node, again.cause.code) == (2, outcome.node, FailureCode.NODE_LOST)


@pytest.mark.contract("C6", "F3")
async def test_without_a_further_attempt_a_vanished_nodes_step_is_lost_when_that_is_certain(tmp_path: Path) -> None:
    async with partitionable(tmp_path, 1) as parted:
        loop = asyncio.get_running_loop()
        run = asyncio.ensure_future(parted.mesh.parallel([step(60, max_attempts=1)]))
        await until(lambda: len(parted.lives()) == 1, "the step runs")
        parted.proxies["node-1"].hold_up()
        began = loop.time()
        (outcome,) = await asyncio.wait_for(run, 60)
        assert loop.time() - began >= LEASE + GRACE + MARGIN
        parted.proxies["node-1"].heal()
        (_, pid, _) = parted.lives()[0]
        await until(lambda: not Path("/proc", pid).exists(), "the node has killed it")
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.NODE_LOST
    assert (outcome.attempts, outcome.node) == (1, "node-1")


@pytest.mark.contract("F1")
async def test_a_step_that_is_cancelled_while_its_link_is_down_is_cancelled_when_it_is_back(tmp_path: Path) -> None:
    async with partitionable(tmp_path, 1) as parted:
        run = asyncio.ensure_future(parted.mesh.parallel([step(60)]))
        await until(lambda: len(parted.lives()) == 1, "the step runs")
        (_, pid, _) = parted.lives()[0]
        parted.proxies["node-1"].hold_up()
        parted.proxies["node-1"].cut()
        await asyncio.sleep(0.2)
        run.cancel()
        await asyncio.sleep(0.2)
        parted.proxies["node-1"].heal()
        await until(lambda: not Path("/proc", pid).exists(), "the step is gone", 10)
