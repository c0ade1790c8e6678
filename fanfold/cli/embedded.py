"""A whole mesh on this machine, for development: each service a process of its own, all of them on loopback."""

from __future__ import annotations

import asyncio
import fcntl
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fanfold.cli.child import Child
from fanfold.cli.service import Service
from fanfold.cli.service_settings import COORDINATOR, EXECUTOR_NODE, JOB_REGISTRY
from fanfold.errors import FailedPrecondition
from fanfold.model.node import NodeState
from fanfold.rpc.addresses import LOOPBACK

if TYPE_CHECKING:
    from fanfold.clients.coordinator import CoordinatorClient

START_SECONDS = 60.0
"""Longest wait for all services to be up."""

DRAIN_SECONDS = 2.0
"""What running steps and calls get to end when the mesh is stopped."""

STOP_SECONDS = 15.0
"""After this a service that was asked to stop is killed; more than it takes to stop a step that will not."""

_MAX_CONCURRENT_STEPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an embedded mesh is to be like."""

    data_dir: Path
    """Where configurations, logs and the journal of runs go; made if it is not there."""
    workspace: Path = Path()
    """The folder that steps work in."""
    agents: Path | None = None
    """A folder of agent files."""
    nodes: int = 2
    shell: bool = False
    """Whether nodes offer the built-in `shell` agent."""
    port: int = 0
    """The coordinator's port; 0 takes a free one."""
    registry_port: int = 0
    """The job registry's port; 0 takes a free one."""
    hint: int | None = None
    """How many steps each node would like to have at once; None is the nodes' own default."""
    coordinator: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the coordinator."""


class EmbeddedMesh:
    """A coordinator, a job registry and nodes, up while the block lasts: `async with EmbeddedMesh(plan) as mesh: ...`.

    Leaving the block stops them in order: first what gives work out, then what does it. To be cancelled while it does
    so kills them. Should this process vanish, they stop by themselves.

    Raises (on entering):
        FailedPrecondition: the port is taken, the data folder is in use, or a service does not start; says why.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._coordinator: Service | None = None
        self._registry: Service | None = None
        self._nodes: list[Service] = []
        self._resources = ExitStack()

    @property
    def server(self) -> str:
        """The coordinator's address, as host:port."""
        assert self._coordinator is not None
        return self._coordinator.child.address

    @property
    def registry(self) -> str:
        """The job registry's address, as host:port."""
        assert self._registry is not None
        return self._registry.child.address

    @property
    def services(self) -> list[Child]:
        """The processes of all services, those that give work out first."""
        return [service.child for service in self._started]

    @property
    def _started(self) -> list[Service]:
        return [service for service in (self._coordinator, *self._nodes, self._registry) if service is not None]

    async def keep_up(self, told: Callable[[str], None]) -> Child:
        """Start services that end by themselves again, and tell it, until one has died too often lately.

        Returns what that was.
        """
        watches = [asyncio.create_task(service.keep_up(told)) for service in self._started]
        try:
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.wait(watches)

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._start()
        except BaseException as error:
            await self._stop()
            if isinstance(error, TimeoutError):
                raise FailedPrecondition(f"the mesh was not up within {START_SECONDS:g} s") from None
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _start(self) -> None:
        plan = self.plan
        _refuse_taken(plan.port, "--port")
        _refuse_taken(plan.registry_port, "--registry-port")
        self._take_data_dir()
        folder = plan.data_dir.resolve()
        at = {"listen": f"{LOOPBACK}:{plan.registry_port}", "store": {"path": str(folder / "jobs.db")}}
        self._registry = await self._serve(JOB_REGISTRY, JOB_REGISTRY, at)
        if not plan.registry_port:
            await self._registry.wait_until_ready()
        registry = self._registry.child.address or f"{LOOPBACK}:{plan.registry_port}"
        settings = {
            "listen": f"{LOOPBACK}:{plan.port}",
            "journal": {"path": str(folder / "journal.db")},
            "registry": registry,
            **plan.coordinator,
        }
        self._coordinator = await self._serve(COORDINATOR, COORDINATOR, settings)
        await self._coordinator.wait_until_ready()
        for number in range(1, plan.nodes + 1):
            self._nodes.append(await self._serve(EXECUTOR_NODE, f"node-{number}", self._node_settings()))
        from fanfold.clients.coordinator import CoordinatorClient  # noqa: PLC0415 - while the nodes start

        for service in (*([self._registry] if plan.registry_port else []), *self._nodes):
            await service.wait_until_ready()
        async with CoordinatorClient(self.server) as client:
            await self._wait_for_links(client)

    def _node_settings(self) -> dict[str, Any]:
        plan = self.plan
        settings: dict[str, Any] = {
            "announce_to": [self.server],
            "workspace": str(plan.workspace.resolve()),
            "agents": {"shell": plan.shell},
        }
        if plan.agents is not None:
            settings["agents"]["directory"] = str(plan.agents.resolve())
        if plan.hint is not None:
            most = max(plan.hint, _MAX_CONCURRENT_STEPS)
            settings["capacity"] = {"concurrency_hint": plan.hint, "max_concurrent_steps": most}
        return settings

    async def _serve(self, kind: str, name: str, settings: Mapping[str, Any]) -> Service:
        everywhere = {
            "listen": f"{LOOPBACK}:0",
            "metrics_listen": f"{LOOPBACK}:0",
            "drain_grace": DRAIN_SECONDS,
            "exit_with_parent": True,
        }
        if kind != JOB_REGISTRY:
            everywhere["name"] = name
        service = Service(kind, name, {**everywhere, **settings}, self.plan.data_dir)
        await service.start()
        return service

    async def _wait_for_links(self, client: CoordinatorClient) -> None:
        """Wait until the coordinator can place steps on every node."""
        states: dict[str, NodeState] = {}
        async for change in client.watch_nodes():
            states |= {view.address: view.state for view in change.nodes}
            if all(states.get(node.child.address) is NodeState.READY for node in self._nodes):
                return

    async def _stop(self) -> None:
        try:
            if self._coordinator is not None:
                await self._coordinator.child.stop(STOP_SECONDS)
            await asyncio.gather(*(node.child.stop(STOP_SECONDS) for node in self._nodes))
            if self._registry is not None:
                await self._registry.child.stop(STOP_SECONDS)
        finally:
            await asyncio.gather(*(child.kill() for child in self.services))
            self._resources.close()

    def _take_data_dir(self) -> None:
        folder = self.plan.data_dir
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / ".gitignore").write_text("*\n")
            lock = self._resources.enter_context((folder / "lock").open("w"))
        except OSError as error:
            raise FailedPrecondition(f"{error.filename or folder}: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FailedPrecondition(f"another mesh is using {folder}; choose another folder with --data-dir") from None


def _refuse_taken(port: int, option: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise FailedPrecondition(
                f"cannot listen on {LOOPBACK}:{port} ({error.strerror}); choose another port with {option}, 0 for any"
            ) from None
