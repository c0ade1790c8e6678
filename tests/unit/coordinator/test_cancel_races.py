"""A cancel that meets the step's own end: whichever comes first, nobody waits for what has happened (C9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from coordinator.placement.adoption import Adoptions
from coordinator.placement.execution import Execution, Lost
from coordinator.placement.mesh import Mesh
from coordinator.placement.node import NO_LEASES, KnownNode
from coordinator.placement.nodes import Nodes
from coordinator.placement.queue import Patience, PlacementQueue
from coordinator.scope import Scope
from fanfold.errors import Unavailable
from fanfold.model.node import Agent, AgentKind, Isolation, Node, NodeStatus
from fanfold.model.step import AgentStepSpec, StepEnded, StepOutcome, StepStarted
from fanfold.ports import ExecutionStart, LinkListener, Rejection, RejectionReason
from fanfold.schema import SchemaValidator

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SPEC = AgentStepSpec(task_id="t", agent="a", description="d", prompt="p")
DONE = StepOutcome(task_id="t", agent="a", success=True)
CANCEL_WAIT = 30.0
AT_ONCE = 2.0
"""Seconds: far below CANCEL_WAIT, far above what a few turns of the loop take."""


@dataclass
class FakeLink:
    """A link that keeps what it is asked for; starts leave it at once, unless `holds_starts`."""

    holds_starts: bool = False
    starts: list[ExecutionStart] = field(default_factory=list)
    cancels: list[str] = field(default_factory=list)
    wanted: list[str] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)

    def start(self, start: ExecutionStart) -> None:
        self.starts.append(start)

    def cancel(self, execution_id: str, reason: str, delay: float = 0.0) -> bool:
        self.cancels.append(execution_id)
        return not self.holds_starts

    def want(self, execution_id: str) -> None:
        self.wanted.append(execution_id)

    def adopt(self, run_id: str, epoch: int) -> None: ...
    def acknowledge(self, execution_id: str) -> None:
        self.acknowledged.append(execution_id)

    def unsent(self) -> list[str]:
        return [start.execution_id for start in self.starts] if self.holds_starts else []

    def finish(self) -> None: ...


@dataclass
class OneNode:
    """One node with a fake link, and a step that runs there; implements NodeDialer."""

    link: FakeLink
    ended: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    listener: LinkListener | None = None

    async def hold_link(self, address: str, listener: LinkListener) -> None:
        self.listener = listener
        agent = Agent(name="a", description="d", kind=AgentKind.PYTHON, isolation=Isolation.SHARED)
        status = NodeStatus(concurrency_hint=1, max_concurrent_steps=1)
        listener.welcomed(Node(name="n", boot_id="b", agents=(agent,), status=status), self.link, frozenset())
        await self.ended

    def end_step(self) -> None:
        assert self.listener is not None
        self.listener.execution_event(self.link.starts[0].execution_id, StepEnded(task_id="t", time=NOW, outcome=DONE))

    def reject_step(self) -> None:
        assert self.listener is not None
        full = Rejection(reason=RejectionReason.FULL, retry_delay=60)
        self.listener.execution_rejected(self.link.starts[0].execution_id, full)

    def break_link(self) -> None:
        assert isinstance(self.listener, KnownNode)
        self.listener.lost(Unavailable("it is gone"))


@asynccontextmanager
async def running_step(link: FakeLink) -> AsyncIterator[tuple[OneNode, KnownNode, asyncio.Task[StepOutcome]]]:
    """A step that has been sent to the node."""
    one = OneNode(link)
    async with Nodes(one) as nodes, SchemaValidator() as validator:
        mesh = Mesh(nodes, PlacementQueue(nodes, Patience()), validator, cancel_wait=CANCEL_WAIT)
        nodes.want("x:1")
        executor = mesh.executor(Scope(run_id="run-1", owner="o", progress=False))
        task = asyncio.create_task(executor.execute_step(SPEC))
        async with asyncio.timeout(5):
            while not link.starts:
                await asyncio.sleep(0)
        (known,) = nodes
        assert known.standing.in_flight == 1
        await asyncio.sleep(0)
        yield one, known, task


MEANWHILE: list[Callable[[OneNode], None]] = [OneNode.end_step, OneNode.reject_step, OneNode.break_link]


@pytest.mark.contract("C9")
@pytest.mark.parametrize("happen", MEANWHILE)
@pytest.mark.parametrize("cancel_first", [True, False])
async def test_an_end_in_the_same_turn_as_the_cancel_is_not_waited_for(
    happen: Callable[[OneNode], None], cancel_first: bool
) -> None:
    async with running_step(FakeLink()) as (one, known, task):
        if cancel_first:
            task.cancel()
            happen(one)
        else:
            happen(one)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, AT_ONCE)
        assert known.standing.in_flight == 0
        assert one.link.cancels == [], "there was nothing left to cancel"


@pytest.mark.contract("C9")
@pytest.mark.parametrize("happen", MEANWHILE)
async def test_a_cancelled_step_is_waited_for_until_it_is_gone(happen: Callable[[OneNode], None]) -> None:
    async with running_step(FakeLink()) as (one, known, task):
        task.cancel()
        await asyncio.wait({task}, timeout=0.05)
        assert one.link.cancels == [one.link.starts[0].execution_id]
        assert not task.done()
        assert known.standing.in_flight == 1, "its place is taken for as long as it is there"
        happen(one)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, AT_ONCE)
        assert known.standing.in_flight == 0


async def test_a_step_whose_start_never_left_is_gone_at_once() -> None:
    async with running_step(FakeLink(holds_starts=True)) as (_, known, task):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, AT_ONCE)
        assert known.standing.in_flight == 0


async def test_an_execution_may_be_waited_for_again_after_a_wait_that_was_cancelled() -> None:
    one = Execution(KnownNode("n", lambda _node, _change: None, NO_LEASES, Adoptions()), "e")
    first = asyncio.create_task(one.wait())
    await asyncio.sleep(0)
    first.cancel()
    one.end(DONE)
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await asyncio.wait_for(one.wait(), AT_ONCE) is DONE


async def test_the_first_word_on_how_an_execution_ended_counts() -> None:
    one = Execution(KnownNode("n", lambda _node, _change: None, NO_LEASES, Adoptions()), "e")
    one.end(DONE)
    one.end(Lost("n", StepStarted(task_id="t", time=NOW)))
    assert await one.wait() is DONE
