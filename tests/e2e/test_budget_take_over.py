"""A budget that outlives the coordinator which kept it, over nodes that are processes (C13, C19)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import yaml

from fanfold import Mesh
from fanfold.cli.child import Child
from fanfold.model.run import Budget, ParallelResult
from fanfold.model.step import FailureCode, StepEnded, StepEvent, StepProgressed, StepStarted
from fanfold.sdk.parallel import ParallelRun
from support.coordinators import Coordinators, coordinators
from support.mesh import AGENTS, ANY_PORT, until, until_ready

pytestmark = pytest.mark.process

LEASES = {"lease": 3.0, "lease_grace": 1.0, "lease_margin": 0.5, "silence": 2.0, "redial_delay": 0.2}


class Told:
    """What the run's caller was told: where steps run, which of them have made a call, which have ended."""

    def __init__(self) -> None:
        self.places: dict[str, str] = {}
        self.called: set[str] = set()
        self.ended: list[str] = []

    def hear(self, event: StepEvent) -> None:
        if isinstance(event, StepStarted):
            self.places[event.task_id] = event.node
        elif isinstance(event, StepProgressed):
            self.called.add(event.task_id)
        elif isinstance(event, StepEnded):
            self.ended.append(event.task_id)


async def result_of(run: ParallelRun) -> ParallelResult:
    return await run


async def started_node(name: str, up: Coordinators) -> Child:
    settings = {
        "name": name,
        "listen": ANY_PORT,
        "metrics_listen": ANY_PORT,
        "announce_to": [child.address for child in up.children],
        "workspace": str(up.workspace),
        "agents": {"directory": str(AGENTS)},
        "step": {"stop_grace": 0.5},
        "silence_limit": 1.5,
        "exit_with_parent": True,
    }
    file = up.workspace.parent / f"{name}.yaml"
    file.write_text(yaml.safe_dump(settings))
    node = await Child.start(name, ["executor-node", "--config", str(file)], log=file.with_suffix(".log"))
    await node.wait_until_ready()
    return node


@asynccontextmanager
async def two_nodes(up: Coordinators) -> AsyncIterator[dict[str, Child]]:
    """Two nodes by name, ready for every coordinator; whatever is there by name in the end is stopped."""
    async with AsyncExitStack() as stack:
        nodes: dict[str, Child] = {}
        for name in ("node-1", "node-2"):
            nodes[name] = await started_node(name, up)
            stack.push_async_callback(partial(_kill, nodes, name))
        for child in up.children:
            async with Mesh(child.address) as mesh:
                await until_ready(mesh, 2)
        yield nodes


async def _kill(nodes: dict[str, Child], name: str) -> None:
    await nodes[name].kill()


def spender(task_id: str, prompt: str, max_tokens: int) -> dict[str, object]:
    policy = {"max_tokens": max_tokens, "max_attempts": 2}
    return {"task_id": task_id, "agent": "spends", "description": "d", "prompt": prompt, "policy": policy}


@pytest.mark.contract("C13", "C19", "F10")
@pytest.mark.parametrize("comes_back", [True, False], ids=["its node comes back", "its node stays away"])
async def test_what_is_spent_is_right_after_a_take_over(tmp_path: Path, *, comes_back: bool) -> None:
    steps = [
        spender("done", "10", 100),
        spender("failed", "60 fail", 60),
        spender("stays", "20 wait 30", 100),
        spender("goes", "40 wait 50", 200),
    ]
    told = Told()
    async with coordinators(tmp_path, nodes=0, leases=LEASES) as up, two_nodes(up) as nodes, Mesh(up.servers) as mesh:
        run = mesh.parallel_resumable(steps, "audit", budget_tokens=1000, on_event=told.hear)
        running = asyncio.ensure_future(result_of(run))
        await until(lambda: {"done", "failed"} <= set(told.ended), "two have ended")
        await until(lambda: {"stays", "goes"} <= told.called, "the others have made their first call")
        assert told.places["stays"] != told.places["goes"], "they were placed in turn"
        await asyncio.gather(up.of("c1").kill(), nodes[told.places["goes"]].kill())
        if comes_back:
            nodes[told.places["goes"]] = await started_node(told.places["goes"], up)
        (up.workspace / "go").touch()
        result = await asyncio.wait_for(running, 60)
    done, failed, stays, goes = result
    assert done.success
    assert stays.success
    assert goes.success, goes.failure
    assert failed.failure is not None
    assert failed.failure.code is FailureCode.AGENT_FAILED
    assert [outcome.usage.tokens for outcome in result] == [10, 120, 50, 90]
    # What the lost attempt has spent nobody knows: it is charged all that was set aside for it.
    assert result.budget == Budget(limit=1000, spent=10 + 120 + 50 + 200 + 90)
