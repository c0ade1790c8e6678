"""A coordinator's side of adoption over nodes that a test plays."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from coordinator.combinators.runner import StepKey
from coordinator.placement.mesh import Mesh, MeshExecutor
from coordinator.placement.node import KnownNode
from coordinator.placement.nodes import Nodes
from coordinator.scope import Receipts, Scope
from fanfold.errors import FanfoldError, Unavailable
from fanfold.model.node import Agent, AgentKind, Isolation, Node, NodeStatus
from fanfold.model.step import (
    NO_USAGE,
    AgentStepSpec,
    FailureCode,
    StepEnded,
    StepFailure,
    StepOutcome,
    StepPolicy,
    Usage,
)
from fanfold.ports import ExecutionStart, LinkListener, RunAdopted

CERTAINTY = 0.6
LEASE = 0.3
RUN = "run-1"
FIRST = f"{RUN}/a/1.1.1.0"


@dataclass
class FakeLink:
    """A link that keeps what it is asked for."""

    starts: list[ExecutionStart] = field(default_factory=list)
    cancels: list[tuple[str, float]] = field(default_factory=list)
    adoptions: list[tuple[str, int]] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    finished: bool = False

    def start(self, start: ExecutionStart) -> None:
        self.starts.append(start)

    def cancel(self, execution_id: str, reason: str, delay: float = 0.0) -> bool:
        self.cancels.append((execution_id, delay))
        return True

    def adopt(self, run_id: str, epoch: int) -> None:
        self.adoptions.append((run_id, epoch))

    def acknowledge(self, execution_id: str) -> None:
        self.acknowledged.append(execution_id)

    def want(self, execution_id: str) -> None: ...
    def unsent(self) -> list[str]:
        return []

    def finish(self) -> None:
        self.finished = True


class FakeNode:
    """A node that answers when the test says so, over one link after another; implements NodeDialer."""

    def __init__(self) -> None:
        self.links: list[FakeLink] = []
        self.held: frozenset[str] = frozenset()
        self.up = asyncio.Event()
        self.address = "x:1"
        """Where it answers, and nowhere else."""
        self._listener: LinkListener | None = None
        self._end: asyncio.Future[FanfoldError] | None = None

    @property
    def link(self) -> FakeLink:
        """The latest link."""
        return self.links[-1]

    @property
    def listener(self) -> LinkListener:
        assert self._listener is not None
        return self._listener

    async def hold_link(self, address: str, listener: LinkListener) -> None:
        await self.up.wait()
        if address != self.address:
            raise Unavailable("nobody there")
        agent = Agent(name="a", description="d", kind=AgentKind.LLM, isolation=Isolation.SHARED, uses_model=True)
        status = NodeStatus(concurrency_hint=4, max_concurrent_steps=4)
        node = Node(name="n", boot_id="b", agents=(agent,), status=status)
        self._listener, self._end = listener, asyncio.get_running_loop().create_future()
        self.links.append(FakeLink())
        listener.welcomed(node, self.link, self.held)
        raise await self._end

    def break_link(self) -> None:
        """Be away until `up` is set."""
        assert self._end is not None
        self.up.clear()
        self._end.set_result(Unavailable("gone"))

    def answer(self, *, running: Sequence[str] = (), ended: Sequence[str] = (), epoch: int = 2) -> None:
        self.held |= {*running, *ended}
        held = RunAdopted(run_id=RUN, epoch=epoch, running=frozenset(running), ended=frozenset(ended))
        self.listener.run_adopted(held)

    def end(self, execution_id: str, usage: Usage = NO_USAGE, code: FailureCode | None = None) -> None:
        failure = None if code is None else StepFailure(code=code, message="m")
        outcome = StepOutcome(task_id="a", agent="a", success=failure is None, failure=failure, attempts=1, usage=usage)
        self.listener.execution_event(execution_id, StepEnded(task_id="a", time=datetime.now(UTC), outcome=outcome))


@dataclass
class Setting:
    node: FakeNode
    nodes: Nodes
    known: KnownNode
    mesh: Mesh

    async def links(self, count: int) -> None:
        """Wait until that many links were made."""
        self.node.up.set()
        async with asyncio.timeout(5):
            while len(self.node.links) < count or not self.known.is_linked():
                await asyncio.sleep(0.001)

    async def no_link(self) -> None:
        self.node.break_link()
        async with asyncio.timeout(5):
            while self.known.is_linked():
                await asyncio.sleep(0.001)


def journaled(**fields: object) -> Scope:
    return Scope(run_id=RUN, owner="o", progress=False, epoch=2, receipts=Receipts(), **fields)  # type: ignore[arg-type]


def asked(key: str, max_tokens: int | None = None) -> AgentStepSpec:
    policy = StepPolicy(max_tokens=max_tokens)
    return AgentStepSpec(task_id=key, agent="a", description="d", prompt="p", policy=policy)


def begin(executor: MeshExecutor, key: str = "a", max_tokens: int | None = None) -> asyncio.Task[StepOutcome]:
    spec = asked(key, max_tokens)
    return asyncio.ensure_future(executor.run_step(StepKey.of_spec(0, spec), spec, None))
