"""A whole mesh of processes, each of which can be replaced as a deployment does it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fanfold.cli.child import Child
from fanfold.cli.service_settings import COORDINATOR, EXECUTOR_NODE, JOB_REGISTRY
from support.coordinators import PATIENCE, SHORT_LEASES
from support.mesh import AGENTS, ANY_PORT
from support.proxy import proxied

DRAIN_GRACE = 0.6
STOPPED_WITHIN = 60.0


class Member:
    """A service that runs, in one process after another, always at the same address."""

    def __init__(self, service: str, name: str, folder: Path, settings: Mapping[str, Any]) -> None:
        self.name = name
        self._service = service
        self._file = folder / f"{name}.yaml"
        self._settings = {
            "listen": ANY_PORT,
            "metrics_listen": ANY_PORT,
            "drain_grace": DRAIN_GRACE,
            "exit_with_parent": True,
            **settings,
        }
        self._child: Child | None = None

    @property
    def address(self) -> str:
        """Where it is."""
        assert self._child is not None
        return self._child.address

    async def start(self) -> None:
        """Start it, and wait until it is ready."""
        self._file.write_text(yaml.safe_dump(self._settings))
        arguments = [self._service, "--config", str(self._file)]
        self._child = await Child.start(self.name, arguments, log=self._file.with_suffix(".log"))
        await self._child.wait_until_ready()
        self._settings["listen"] = self.address

    async def replace(self) -> None:
        """Have it drain, and start another process in its place as soon as it has ended."""
        assert self._child is not None
        await self._child.stop(STOPPED_WITHIN)
        assert self._child.ended.result() == 0, self._child.obituary()
        await self.start()

    async def kill(self) -> None:
        """Kill it, if it runs."""
        if self._child is not None:
            await self._child.kill()


@dataclass(slots=True)
class Fleet:
    """Coordinators, registries and nodes that know one another."""

    workspace: Path
    coordinators: list[Member] = field(default_factory=list)
    registries: list[Member] = field(default_factory=list)
    registry: str = ""
    """Where clients find the registries."""
    nodes: list[Member] = field(default_factory=list)

    @property
    def servers(self) -> list[str]:
        """Where its coordinators are."""
        return [member.address for member in self.coordinators]

    @property
    def members(self) -> list[Member]:
        """All of it, in the order in which it is replaced."""
        return [*self.registries, *self.coordinators, *self.nodes]


@asynccontextmanager
async def fleet(folder: Path, url: str, *, registries: int, coordinators: int, nodes: int) -> AsyncIterator[Fleet]:
    """A fleet that is up, with journal and jobs in a database of PostgreSQL, and one address for all registries."""
    up = Fleet(folder / "workspace")
    up.workspace.mkdir()
    try:
        names = [f"registry-{number}" for number in range(1, registries + 1)]
        up.registries = [Member(JOB_REGISTRY, name, folder, {"store": {"url": url}}) for name in names]
        await _start(up.registries)
        async with proxied(*(member.address for member in up.registries)) as balancer:
            up.registry = balancer.address
            journal = {**SHORT_LEASES, "url": url, "outage": 10.0}
            settings = {"journal": journal, "registry": up.registry, "placement": PATIENCE}
            names = [f"c{number}" for number in range(1, coordinators + 1)]
            up.coordinators = [Member(COORDINATOR, name, folder, {**settings, "name": name}) for name in names]
            await _start(up.coordinators)
            names = [f"node-{number}" for number in range(1, nodes + 1)]
            up.nodes = [Member(EXECUTOR_NODE, name, folder, {**_node(up), "name": name}) for name in names]
            await _start(up.nodes)
            yield up
    finally:
        await asyncio.gather(*(member.kill() for member in up.members))


def _node(up: Fleet) -> dict[str, Any]:
    return {
        "announce_to": up.servers,
        "workspace": str(up.workspace),
        "agents": {"directory": str(AGENTS), "shell": True},
        "step": {"stop_grace": 0.5},
    }


async def _start(members: list[Member]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for member in members:
            tasks.create_task(member.start())
