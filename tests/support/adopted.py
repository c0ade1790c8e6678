"""A node that outlives coordinators, and the coordinators that hold a run on it one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.combinators.runner import StepKey, run_to_end
from coordinator.placement.adoption import AdoptedExecution, adopt_run
from coordinator.placement.mesh import Mesh, MeshExecutor, Retries
from coordinator.placement.node import KnownNode, Leases
from coordinator.placement.nodes import Nodes
from coordinator.placement.queue import Patience, PlacementQueue
from coordinator.scope import Receipts, Scope
from executor_node.app import running as running_node
from executor_node.supervisor.client import Supervision
from fanfold.clients.node_link import GrpcNodeDialer
from fanfold.model.node import NodeState
from fanfold.model.step import AgentStepSpec, StepEvent, StepOutcome, StepPolicy
from fanfold.schema import SchemaValidator
from support.mesh import node_config, until
from support.proxy import Proxy, proxied

LEASE, GRACE, MARGIN = 3.0, 1.5, 0.5
CERTAINTY = LEASE + GRACE + MARGIN
RUN = "run-1"


@dataclass
class Machine:
    """A node that a test can start anew, and its workspace."""

    workspace: Path
    stack: AsyncExitStack
    address: str = ""

    async def boot(self) -> None:
        """A life of the node, in place of the former one."""
        await self.stack.aclose()
        config = node_config(self.workspace, "node-1", "127.0.0.1:1", {"announce_to": []})
        supervision = Supervision.spawn({"PATH": "/usr/bin:/bin"})
        self.address = (await self.stack.enter_async_context(running_node(config, supervision, {}))).address

    def lives(self) -> list[str]:
        """The process ids of the executions that have begun."""
        file = self.workspace / "lives"
        written = file.read_text() if file.exists() else ""
        return written[: written.rfind("\n") + 1].split()

    def open_gate(self) -> None:
        """Let the executions end."""
        (self.workspace / "gate").touch()

    def is_alive(self, life: int) -> bool:
        return Path("/proc", self.lives()[life]).exists()


@dataclass
class Coordinator:
    """As much of a coordinator as places steps, and the proxy between it and the node."""

    mesh: Mesh
    proxy: Proxy

    @property
    def node(self) -> KnownNode:
        (node,) = self.mesh.nodes
        return node

    async def break_link(self) -> None:
        """Break the link, and wait until there is another."""
        before = self.node.view().state_changed_at
        self.proxy.cut()
        await until(lambda: self.is_linked() and self.node.view().state_changed_at != before, "there is a new link")

    def is_linked(self) -> bool:
        return any(node.standing.state is NodeState.READY for node in self.mesh.nodes)


@asynccontextmanager
async def coordinator(machine: Machine, name: str) -> AsyncIterator[Coordinator]:
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(proxied(machine.address))
        validator = await stack.enter_async_context(SchemaValidator())
        leases = Leases(lease=LEASE, certainty=CERTAINTY)
        dialer = GrpcNodeDialer(name, lease=LEASE, silence=2.5)
        nodes = await stack.enter_async_context(Nodes(dialer, redial_delay=0.2, leases=leases))
        nodes.want(proxy.address)
        queue = PlacementQueue(nodes, Patience(agent_unknown=30))
        mesh = Mesh(nodes, queue, validator, retries=Retries(first=0.02, most=0.05), cancel_wait=5)
        both = Coordinator(mesh, proxy)
        await until(both.is_linked, "the node is ready")
        yield both


@dataclass
class Holding:
    """A run as one coordinator holds it, and what it hears of its steps."""

    coordinator: Coordinator
    scope: Scope
    executor: MeshExecutor = field(init=False)
    heard: list[StepEvent] = field(default_factory=list)
    tasks: list[asyncio.Task[StepOutcome]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.executor = self.coordinator.mesh.executor(self.scope)

    def begin(self, key: str = "a", prompt: str = "", max_attempts: int = 2) -> asyncio.Task[StepOutcome]:
        """Run a step that notes that it began, and ends when the gate is open, if its prompt does not say otherwise."""
        prompt = prompt or "echo $$ >> lives; until [ -e gate ]; do sleep 0.02; done; echo done"
        policy = StepPolicy(max_attempts=max_attempts)
        spec = AgentStepSpec(task_id=key, agent="shell", description="d", prompt=prompt, policy=policy)
        run = run_to_end(self.executor, StepKey.of_spec(0, spec), spec, self.heard.append)
        self.tasks.append(asyncio.ensure_future(run))
        return self.tasks[-1]

    async def outcome(self, key: str = "a", prompt: str = "", max_attempts: int = 2) -> StepOutcome:
        return await asyncio.wait_for(self.begin(key, prompt, max_attempts), 30)

    async def adopt(self, timeout: float = CERTAINTY) -> dict[str, AdoptedExecution]:
        await asyncio.wait_for(adopt_run(self.coordinator.mesh.nodes, self.scope, ["node-1"], timeout), 30)
        return self.scope.adopted

    async def give_up(self) -> None:
        """Stop holding the run, as a coordinator does that is about to stop or has lost it."""
        self.scope.hold.give_up()
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)

    def settle(self, key: str = "a") -> None:
        assert self.scope.receipts is not None
        self.scope.receipts.settled(key)


def held_by(coordinator: Coordinator, epoch: int, *, journaled: bool = True) -> Holding:
    receipts = Receipts() if journaled else None
    return Holding(coordinator, Scope(run_id=RUN, owner="o", progress=True, epoch=epoch, receipts=receipts))


async def settled_once(of: Coordinator) -> None:
    """Wait until the node has done all that it was asked for up to now."""
    marker = Scope(run_id="marker", owner="o", progress=False)
    spec = AgentStepSpec(task_id="m", agent="noop", description="d", prompt="p")
    await of.mesh.executor(marker).execute_step(spec)


Two = tuple[Coordinator, Coordinator]
