"""One node that the coordinator knows: its link, its state, and the executions that are there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum, auto

from coordinator.scope import Scope
from fanfold.errors import FanfoldError
from fanfold.model.node import Node, NodeState, NodeStatus, NodeView
from fanfold.model.step import StepEnded, StepEvent, StepOutcome, StepStarted
from fanfold.ports import ExecutionStart, NodeLink, OnStepEvent, Rejection, RejectionReason

_LONGEST_FULL_SECONDS = 60.0
"""Most that a node that says to be full is left alone, whatever it says."""

_DRAINING = "it finishes what it runs and stops"


class Change(Enum):
    """What changed about a node: whom it can serve at all, or only how much room it has."""

    OFFER = auto()
    ROOM = auto()


@dataclass(frozen=True, slots=True)
class Lost:
    """The execution is gone with its node, for certain; `started` is what it had told by then."""

    node: str
    started: StepStarted | None


Ending = StepOutcome | Rejection | Lost
"""How an execution leaves a node."""


class Execution:
    """One attempt of a step on a node, until it leaves it."""

    __slots__ = (
        "_scope",
        "_suspension",
        "_waiter",
        "cancel_reason",
        "ending",
        "is_wanted",
        "is_withheld",
        "listener",
        "start",
        "started",
    )

    def __init__(self, start: ExecutionStart, listener: OnStepEvent, scope: Scope) -> None:
        self.start = start
        self.listener = listener
        self._scope = scope
        self._suspension: ExitStack | None = None
        self.started: StepStarted | None = None
        self.ending: Ending | None = None
        """How it left the node, once it has."""
        self.is_withheld = False
        """Whether it has ended, and its ending, which is large, is still on the node."""
        self.is_wanted = False
        """Whether its ending is to come nevertheless."""
        self.cancel_reason: str | None = None
        """Why it is to be stopped, if it is."""
        self._waiter: asyncio.Future[None] | None = None

    def end(self, ending: Ending) -> None:
        """It left the node; the first word counts."""
        self.resume()
        if self.ending is None:
            self.ending = ending
            self._wake()

    def withhold(self) -> None:
        """It has ended, and its ending comes when it is wanted."""
        self.is_withheld = True
        if not self.is_wanted:
            self._wake()

    def keeps_up(self) -> bool:
        """Whether its progress is read as fast as it comes."""
        return self._scope.pace.keeps_up()

    def suspend(self, reason: str) -> None:
        """Nothing is heard of it, because of this (C42)."""
        self.resume()
        self._suspension = ExitStack()
        self._suspension.enter_context(self._scope.waiting.on(reason))

    def resume(self) -> None:
        """It is heard of again."""
        if self._suspension is not None:
            self._suspension.close()
            self._suspension = None

    async def wait(self) -> Ending | None:
        """How it left the node; None if the node withholds that and it is not wanted yet.

        May be waited for again after a wait that was cancelled, by one at a time.
        """
        if self.ending is None and (self.is_wanted or not self.is_withheld):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.ending

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class KnownNode:
    """A node by its address. It hears the link (as a `LinkListener`) and keeps count of what is on the node.

    `on_change` is told whenever the node's offer or its room changed. `certainty` in seconds is how long after the loss
    of its link nothing that ran there can still run: lease, grace and margin.
    """

    def __init__(self, address: str, on_change: Callable[[KnownNode, Change], None], *, certainty: float = 0.0) -> None:
        self.address = address
        self._certainty = certainty
        self._welcomes = 0
        self.node = Node(name="")
        self.state = NodeState.CONNECTING
        self.waiting_on = "its link is being made"
        self.in_flight = 0
        self._on_change = on_change
        self._state_changed_at = datetime.now(UTC)
        self._link: NodeLink | None = None
        self._agents: frozenset[str] = frozenset()
        self._status = NodeStatus()
        self._foreign = 0
        self._full_until = 0.0
        self._executions: dict[str, Execution] = {}
        self.admit: Callable[[KnownNode, Node], None] = lambda _known, _node: None
        """Raises FanfoldError when a node that has answered is not to be used."""

    # What placement asks.

    def offers(self, agent: str) -> bool:
        """Whether it is ready and has the agent."""
        return self.state is NodeState.READY and agent in self._agents

    def carries(self, labels: Iterable[tuple[str, str]]) -> bool:
        """Whether it carries every one of the labels (C6)."""
        return all(self.node.labels.get(name) == value for name, value in labels)

    def has_room(self, now: float) -> bool:
        """Whether it would take one more step now."""
        return self.in_flight + self._foreign < self._status.max_concurrent_steps and now >= self._full_until

    def load(self) -> float:
        """Steps there against steps it would like to have; our own are counted now, others' by its last report."""
        return (self.in_flight + self._foreign) / max(1, self._status.concurrency_hint)

    def agents(self) -> frozenset[str]:
        """Names of the agents it offered when it was last heard."""
        return self._agents

    def hint(self) -> int:
        """Its part of the mesh's concurrency hint (C10)."""
        return self._status.concurrency_hint if self.state is NodeState.READY else 0

    def view(self) -> NodeView:
        """The node as it is shown."""
        return NodeView(
            node=replace(self.node, status=self._status),
            address=self.address,
            state=self.state,
            steps_in_flight=self.in_flight,
            waiting_on=self.waiting_on,
            state_changed_at=self._state_changed_at,
        )

    def is_linked(self) -> bool:
        """Whether its link is up."""
        return self._link is not None

    # What the executor does with it.

    def execute(self, start: ExecutionStart, listener: OnStepEvent, scope: Scope) -> Execution:
        """Send an execution to the node. The caller has taken a place by counting `in_flight` up."""
        execution = Execution(start, listener, scope)
        if self._link is None or self.state is not NodeState.READY:
            # It was ready when the place was taken, and has heard nothing of the step.
            execution.end(Rejection(reason=RejectionReason.DRAINING))
        else:
            self._executions[start.execution_id] = execution
            self._link.start(start)
        return execution

    def cancel(self, execution: Execution, reason: str) -> None:
        """Ask for an execution's end; it still ends by itself. While the link is down the node is asked later."""
        execution.cancel_reason = reason
        execution_id = execution.start.execution_id
        if execution.ending is not None:
            return
        if execution.is_withheld:
            self._drop(execution_id)
            self._end(execution_id, Lost(self.node.name, execution.started))
        elif self._link is not None and not self._link.cancel(execution_id, reason):
            self._end(execution_id, Lost(self.node.name, execution.started))

    def want(self, execution: Execution) -> None:
        """Have the ending come that the node withholds; also from a further link, if this one ends before."""
        execution.is_wanted = True
        if self._link is not None:
            self._link.want(execution.start.execution_id)

    def holds_executions(self) -> bool:
        """Whether anything of ours may still run there."""
        return bool(self._executions)

    def proved_dead(self) -> None:
        """A new life of the node has begun elsewhere: nothing of the former one is left."""
        for execution_id, execution in list(self._executions.items()):
            self._end(execution_id, Lost(self.node.name, execution.started))

    # What the link tells.

    def welcomed(self, node: Node, link: NodeLink, held: frozenset[str]) -> None:
        """The node answered (LinkListener). It still holds what is in `held`, if it is the one that was lost."""
        self.admit(self, node)
        if node.name == self.node.name:
            gone = set(self._executions) - (held if node.boot_id == self.node.boot_id else frozenset())
            for execution_id in gone:
                self._end(execution_id, Lost(self.node.name, self._executions[execution_id].started))
        self._welcomes += 1
        self.node = node
        self._link = link
        self._agents = frozenset(agent.name for agent in node.agents)
        for execution_id, execution in self._executions.items():
            execution.resume()
            if execution.cancel_reason is not None:
                link.cancel(execution_id, execution.cancel_reason)
        self.status_changed(node.status)

    def status_changed(self, status: NodeStatus) -> None:
        """The node says how it fares (LinkListener)."""
        self._status = status
        self._foreign = max(0, status.running_steps - self.in_flight)
        if status.draining:
            self._become(NodeState.DRAINING, _DRAINING)
        else:
            self._become(NodeState.READY, "")
        self._on_change(self, Change.ROOM)
        self._finish_if_drained()

    def execution_event(self, execution_id: str, event: StepEvent) -> None:
        """An execution got on (LinkListener)."""
        if isinstance(event, StepEnded):
            self._end(execution_id, event.outcome)
        elif (execution := self._executions.get(execution_id)) is not None:
            if isinstance(event, StepStarted):
                execution.started = event
            execution.listener(event)

    def execution_withheld(self, execution_id: str, size: int) -> None:
        """An execution has ended, and its ending is large (LinkListener)."""
        execution = self._executions.get(execution_id)
        if execution is None:
            self._drop(execution_id)
            return
        execution.withhold()
        if execution.is_wanted:
            self.want(execution)

    def keeps_up(self, execution_id: str) -> bool:
        """Whether an execution's progress is read (LinkListener)."""
        execution = self._executions.get(execution_id)
        return execution is not None and execution.keeps_up()

    def execution_rejected(self, execution_id: str, rejection: Rejection) -> None:
        """The node did not take an execution (LinkListener)."""
        if rejection.reason is RejectionReason.FULL:
            loop = asyncio.get_running_loop()
            self._full_until = loop.time() + min(rejection.retry_delay, _LONGEST_FULL_SECONDS)
        elif rejection.reason is RejectionReason.DRAINING:
            self._become(NodeState.DRAINING, _DRAINING)
        elif rejection.reason is RejectionReason.AGENT_NOT_OFFERED and execution_id in self._executions:
            self._agents -= {self._executions[execution_id].start.spec.agent}
            self._on_change(self, Change.OFFER)
        self._end(execution_id, rejection)

    def full_until(self) -> float:
        """Loop time until which it said to be full."""
        return self._full_until

    def lost(self, error: FanfoldError) -> None:
        """The link ended. What was there may go on until its lease ends, so it is not lost before that (F2)."""
        if self._link is not None and self._executions:
            asyncio.get_running_loop().call_later(self._certainty, self._give_up, self._welcomes)
            for execution in self._executions.values():
                execution.suspend(f"node {self.node.name}, whose link is down, or the end of its lease")
        unsent = [] if self._link is None else self._link.unsent()
        self._link = None
        if self.node.name:
            self._become(NodeState.LOST, error.message)
        else:
            self._become(NodeState.CONNECTING, error.message)
        for execution_id in unsent:
            self._end(execution_id, Rejection(reason=RejectionReason.DRAINING))

    def _give_up(self, welcomes: int) -> None:
        """The leases of what was there have ended, unless a link that came back meanwhile has renewed them."""
        if welcomes == self._welcomes:
            self.proved_dead()

    def _drop(self, execution_id: str) -> None:
        if self._link is not None:
            self._link.drop(execution_id)

    def _end(self, execution_id: str, ending: Ending) -> None:
        execution = self._executions.pop(execution_id, None)
        if execution is not None:
            execution.end(ending)
        self._finish_if_drained()

    def _finish_if_drained(self) -> None:
        if self.state is NodeState.DRAINING and not self._executions and self._link is not None:
            self._link.finish()

    def _become(self, state: NodeState, waiting_on: str) -> None:
        changed = state is not self.state
        self.state = state
        self.waiting_on = waiting_on
        if changed:
            self._state_changed_at = datetime.now(UTC)
            self._on_change(self, Change.OFFER)
