"""A real mesh inside a test: gRPC servers on free ports of loopback, and real processes for whatever nodes run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.app import running as running_coordinator
from coordinator.config import CoordinatorConfig
from executor_node.app import running as running_node
from executor_node.config import ExecutorNodeConfig
from executor_node.supervisor.client import Supervision
from fanfold import Mesh
from fanfold.clients.run_call import RunCall
from fanfold.model.node import NodeState
from fanfold.model.run import RunEvent
from fanfold.rpc.serving import Serving

AGENTS = Path(__file__).parent.parent / "agents"
"""Folder of the agent files that tests use."""

ANY_PORT = "127.0.0.1:0"
SHORT_PATIENCE = {"agent_unknown": 0.2, "unplaceable": 0.5}
"""How long steps wait to be placed in meshes of tests, in seconds."""

DEADLINE = 20.0
"""Seconds until a condition that a test waits for is taken to fail."""


@dataclass(frozen=True, slots=True)
class RunningMesh:
    """A coordinator and its nodes."""

    coordinator: Serving
    nodes: list[Serving]
    mesh: Mesh
    workspace: Path


async def until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE) -> None:
    """Wait for a condition, and fail naming it if it does not come true in time."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"still not after {seconds:g} s: {what}") from None


async def until_ready(mesh: Mesh, count: int) -> None:
    """Wait until so many nodes are ready."""
    async with asyncio.timeout(DEADLINE):
        while sum(view.state is NodeState.READY for view in await mesh.nodes()) != count:
            await asyncio.sleep(0.01)


async def events_of(call: RunCall) -> AsyncGenerator[RunEvent, None]:
    """What a call tells, one event after the other; closing this ends the call."""
    try:
        while events := await call.read():
            for event in events:
                yield event
    finally:
        await call.close()


@asynccontextmanager
async def coordinator_alone(**settings: Any) -> AsyncIterator[Serving]:
    """A coordinator with short times on free ports; `settings` go over the defaults."""
    short: dict[str, Any] = {"listen": ANY_PORT, "metrics_listen": ANY_PORT, "placement": SHORT_PATIENCE}
    async with running_coordinator(CoordinatorConfig.model_validate(short | settings)) as serving:
        yield serving


@asynccontextmanager
async def running_mesh(
    workspace: Path,
    *,
    nodes: int = 1,
    node: Mapping[str, Any] | None = None,
    coordinator: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[RunningMesh]:
    """A mesh that is ready; `node` and `coordinator` are settings over short defaults."""
    # First what gives work out is stopped: the other way round, it would wait for an answer of what is gone.
    async with AsyncExitStack() as nodes_stack, AsyncExitStack() as coordinator_stack:
        serving = await coordinator_stack.enter_async_context(coordinator_alone(**(coordinator or {})))
        members = [
            await nodes_stack.enter_async_context(
                running_node(
                    node_config(workspace, f"node-{number}", serving.address, node or {}),
                    Supervision.spawn({"PATH": "/usr/bin:/bin"}),
                    environment or {},
                )
            )
            for number in range(1, nodes + 1)
        ]
        mesh = await coordinator_stack.enter_async_context(Mesh(serving.address))
        await until_ready(mesh, nodes)
        yield RunningMesh(serving, members, mesh, workspace)


def node_config(workspace: Path, name: str, coordinator: str, settings: Mapping[str, Any]) -> ExecutorNodeConfig:
    """A node's configuration with short times and the tests' agents."""
    return ExecutorNodeConfig.model_validate(
        {
            "name": name,
            "listen": ANY_PORT,
            "metrics_listen": ANY_PORT,
            "announce_to": [coordinator],
            "workspace": workspace,
            "agents": {"directory": AGENTS, "shell": True},
            "step": {"stop_grace": 0.5},
            **settings,
        }
    )
