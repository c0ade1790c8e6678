"""Coordinators as the processes that they are, over one journal, so that they can be killed one at a time."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from executor_node.app import running as running_node
from executor_node.supervisor.client import Supervision
from fanfold import Mesh
from fanfold.cli.child import Child
from support.mesh import ANY_PORT, DEADLINE, SHORT_PATIENCE, node_config, until_ready

SHORT_LEASES = {"lease": 2.0, "renewal": 0.3, "lease_margin": 0.4, "claim": 0.1, "outage": 0.0, "caller_grace": 5.0}
"""How long runs are held in meshes of tests, in seconds."""


@dataclass(frozen=True, slots=True)
class Coordinators:
    """Coordinators that share a journal, and nodes that they share."""

    children: list[Child]
    workspace: Path

    @property
    def servers(self) -> str:
        """Their addresses, as clients are given them."""
        return ",".join(child.address for child in self.children)

    def of(self, name: str) -> Child:
        """The one of that name."""
        return next(child for child in self.children if child.name == name)

    async def kill(self) -> None:
        """Kill all of them."""
        await asyncio.gather(*(child.kill() for child in self.children))

    async def restart(self, name: str) -> None:
        """Start one that has ended again, where it was."""
        former = self.of(name)
        file = former.log.with_suffix(".yaml")
        if former.address:  # else it never was ready, and what it was told before still holds
            file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"listen": former.address}))
        child = await Child.start(name, ["coordinator", "--config", str(file)], log=former.log)
        self.children[self.children.index(former)] = child
        await child.wait_until_ready()


def journal_in(folder: Path, **settings: Any) -> dict[str, Any]:
    """Settings of a coordinator with a journal of short leases."""
    return {"journal": {"path": str(folder / "journal.db"), **SHORT_LEASES, **settings}}


@asynccontextmanager
async def registry_in(folder: Path, *, name: str = "registry", **settings: Any) -> AsyncIterator[Registry]:
    """A job registry with a store in `folder` and short times; `settings` go over the defaults."""
    file = folder / f"{name}.yaml"
    short = {
        "listen": ANY_PORT,
        "metrics_listen": ANY_PORT,
        "drain_grace": 2.0,
        "exit_with_parent": True,
        "store": {"path": str(folder / "jobs.db")},
        "producers": {"grace": 10.0, "stop_deadline": 10.0},
    }
    file.write_text(yaml.safe_dump(short | settings))
    registry = Registry(file)
    await registry.start()
    try:
        yield registry
    finally:
        await registry.kill()


class Registry:
    """A job registry, as the process that it is."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._child: Child | None = None
        self.address = ""

    async def start(self) -> None:
        """Start it, again at the address that it had before."""
        if self.address:
            self._file.write_text(yaml.safe_dump(yaml.safe_load(self._file.read_text()) | {"listen": self.address}))
        log = self._file.with_suffix(".log")
        self._child = await Child.start("job-registry", ["job-registry", "--config", str(self._file)], log=log)
        await self._child.wait_until_ready()
        self.address = self._child.address

    async def kill(self) -> None:
        """Kill it."""
        assert self._child is not None
        await self._child.kill()

    async def stop(self) -> None:
        """Have it drain, and wait until it has ended."""
        assert self._child is not None
        await self._child.stop(DEADLINE)

    async def freeze(self, seconds: float) -> None:
        """Let nothing of it go on for so long."""
        assert self._child is not None
        self._child.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._child.send_signal(signal.SIGCONT)


@asynccontextmanager
async def coordinators(
    folder: Path, count: int = 2, *, nodes: int = 1, leases: Mapping[str, float] | None = None, **settings: Any
) -> AsyncIterator[Coordinators]:
    """Coordinators c1, c2 ... with short times, ready, with nodes that work in `folder`/workspace.

    `leases` are the times of leases on nodes.
    """
    if leases is not None:
        settings["nodes"] = dict(leases)
    workspace = folder / "workspace"
    workspace.mkdir(parents=True)
    async with AsyncExitStack() as stack:
        children: list[Child] = []
        up = Coordinators(children, workspace)
        stack.push_async_callback(up.kill)
        names = [f"c{number}" for number in range(1, count + 1)]
        children += await asyncio.gather(*(_started(folder, name, dict(settings)) for name in names))
        for number in range(1, nodes + 1):
            announce = {"announce_to": [child.address for child in children]}
            config = node_config(workspace, f"node-{number}", "", announce)
            await stack.enter_async_context(running_node(config, Supervision.spawn({"PATH": "/usr/bin:/bin"}), {}))
        for child in children:
            async with Mesh(child.address) as mesh:
                await until_ready(mesh, nodes)
        yield up


PATIENCE = {"agent_unknown": 30.0, "unplaceable": 30.0}
"""Coordinators that were started again wait for the node to find them."""


@dataclass(frozen=True, slots=True)
class MeshWithJobs:
    """A mesh of processes whose coordinators register jobs."""

    coordinators: Coordinators
    registry: Registry
    mesh: Mesh

    @property
    def workspace(self) -> Path:
        """What steps see."""
        return self.coordinators.workspace


@asynccontextmanager
async def mesh_with_jobs(folder: Path, count: int = 2) -> AsyncIterator[MeshWithJobs]:
    """A registry, `count` coordinators that know it, and a node, all in `folder`."""
    async with (
        registry_in(folder) as registry,
        coordinators(folder, count, registry=registry.address, placement=PATIENCE) as up,
        Mesh(up.servers, registry=registry.address) as mesh,
    ):
        yield MeshWithJobs(up, registry, mesh)


async def _started(folder: Path, name: str, settings: dict[str, Any]) -> Child:
    short = {
        "name": name,
        "listen": ANY_PORT,
        "metrics_listen": ANY_PORT,
        "drain_grace": 2.0,
        "exit_with_parent": True,
        "placement": SHORT_PATIENCE,
        **journal_in(folder, **settings.pop("journal", {})),
    }
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(short | settings))
    child = await Child.start(name, ["coordinator", "--config", str(file)], log=file.with_suffix(".log"))
    await child.wait_until_ready()
    return child
