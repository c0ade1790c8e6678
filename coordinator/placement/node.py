"""One node that the coordinator knows: its link, its state, and the executions that are there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum, auto

from coordinator.placement.adoption import AdoptedExecution, Adoption, Adoptions
from coordinator.placement.execution import Ending, Execution, ExecutionName, Lost
from coordinator.scope import Scope
from coordinator.tracing import Attempted
from coordinator.waiting import WaitsOn
from fanfold.errors import FanfoldError
from fanfold.model.node import HeldBack, Node, NodeState, NodeStatus, NodeView
from fanfold.model.step import StepEnded, StepEvent
from fanfold.ports import ExecutionStart, NodeLink, OnStepEvent, Rejection, RejectionReason, RunAdopted

_LONGEST_FULL_SECONDS = 60.0
"""Most that a node that says to be full is left alone, whatever it says."""

_DRAINING = "it finishes what it runs and stops"


class Change(Enum):
    """What changed about a node: whom it can serve at all, or only how much room it has."""

    OFFER = auto()
    ROOM = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Leases:
    """Times of executions' leases, in seconds.

    `lease` is how long they live on a node without a word of ours; `certainty`, which is longer, is how long after our
    last word nothing that ran there can still run: lease, grace and margin.
    """

    lease: float = 0.0
    certainty: float = 0.0


NO_LEASES = Leases()
"""Executions end with their link."""


class KnownNode:
    """A node by its address. It hears the link (as a `LinkListener`) and keeps count of what is on the node.

    `on_change` is told whenever the node's offer or its room changed; `adoptions` are to be asked of it, by its name.
    """

    def __init__(
        self, address: str, on_change: Callable[[KnownNode, Change], None], leases: Leases, adoptions: Adoptions
    ) -> None:
        self.address = address
        self._leases = leases
        self._adoptions = adoptions
        self._welcomes = 0
        self.node = Node(name="")
        self.state = NodeState.CONNECTING
        self.waiting_on = "its link is being made"
        self.in_flight = 0
        self._on_change = on_change
        self._state_changed_at = datetime.now(UTC)
        self._link: NodeLink | None = None
        self._agents: frozenset[str] = frozenset()
        self._use_model: dict[str, bool] = {}
        self._status = NodeStatus()
        self._held_back: dict[str, HeldBack] = {}
        self._foreign = 0
        self._full_until = 0.0
        self._executions: dict[str, Execution] = {}
        self._taken: dict[str, Execution] = {}
        """Executions whose ending has arrived and is to stay on the node until it is acknowledged."""
        self.admit: Callable[[KnownNode, Node], None] = lambda _known, _node: None
        """Raises FanfoldError when a node that has answered is not to be used."""

    # What placement asks.

    def offers(self, agent: str) -> bool:
        """Whether it is ready and has the agent."""
        return self.state is NodeState.READY and agent in self._agents

    def uses_model(self, agent: str) -> bool | None:
        """Whether it says that the agent spends model tokens; None if it has told nothing of the agent (C13)."""
        return self._use_model.get(agent)

    def held_back(self, agent: str) -> HeldBack | None:
        """Why the agent's steps do not get on there, if its provider holds them back (F8, F9)."""
        return self._held_back.get(agent)

    def hold_back(self, held_back: HeldBack) -> None:
        """An agent's steps are held back there, until the node says how it fares."""
        if held_back.agent not in self._held_back:
            self._held_back[held_back.agent] = held_back

    def carries(self, labels: Iterable[tuple[str, str]]) -> bool:
        """Whether it carries every one of the labels (C6)."""
        return all(self.node.labels.get(name) == value for name, value in labels)

    def has_room(self, now: float) -> bool:
        """Whether it would take one more step now.

        A node that others have filled is asked for a first place all the same: else it would not know that it is to be
        shared, and they would not want less.
        """
        others = self._foreign if self.in_flight else 0
        return self.in_flight + others < self._status.max_concurrent_steps and now >= self._full_until

    def load(self) -> float:
        """Steps there against steps it would like to have; our own are counted now, others' by its last report."""
        return (self.in_flight + self._foreign) / max(1, self._status.concurrency_hint)

    def agents(self) -> frozenset[str]:
        """Names of the agents it offered when it was last heard."""
        return self._agents

    def hint(self) -> int:
        """Its part of the mesh's concurrency hint (C10), shared evenly with other coordinators that have work there."""
        if self.state is not NodeState.READY or not self._status.concurrency_hint:
            return 0
        return max(1, self._status.concurrency_hint // max(1, self._status.coordinators))

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

    def execute(
        self, start: ExecutionStart, listener: OnStepEvent, scope: Scope, traced: Attempted | None = None
    ) -> Execution:
        """Send an execution to the node. The caller has taken a place by counting `in_flight` up."""
        execution = Execution(self, start.execution_id, start.spec.agent, keeps=scope.receipts is not None)
        execution.traced = traced
        execution.attend(listener, scope)
        if self._link is None or self.state is not NodeState.READY:
            # It was ready when the place was taken, and has heard nothing of the step.
            execution.end(Rejection(reason=RejectionReason.DRAINING))
        else:
            self._executions[start.execution_id] = execution
            self._link.start(start)
        return execution

    def cancel(self, execution: Execution, reason: str) -> None:
        """Ask for an execution's end, which nobody will take; it still ends by itself.

        While the link is down the node is asked later.
        """
        if execution.ending is None and not execution.is_withheld:
            execution.keeps = False
            self._stop(execution, reason, 0.0)
        elif execution.keeps or execution.is_withheld:
            execution.cancel_reason = reason
            self.acknowledge(execution.execution_id)
            self._end(execution.execution_id, Lost(self.node.name, execution.started))

    def leave(self, execution: Execution) -> None:
        """Leave an execution to the run's next holder; if none adopts it while a lease lasts, it is stopped."""
        execution.keeps = True
        if execution.traced is not None:
            execution.traced.left()
            execution.traced = None
        if execution.ending is None and not execution.is_withheld:
            self._stop(execution, "its run was given up", self._leases.lease)

    def want(self, execution: Execution) -> None:
        """Have the ending come that the node withholds; also from a further link, if this one ends before."""
        execution.is_wanted = True
        if self._link is not None:
            self._link.want(execution.execution_id)

    def acknowledge(self, execution_id: str) -> None:
        """Tell the node that nobody needs an ending any more."""
        self._taken.pop(execution_id, None)
        if self._link is not None:
            self._link.acknowledge(execution_id)
            self._finish_if_drained()

    def adopt(self, adoption: Adoption) -> None:
        """Ask the node for all that it holds of a run, if its link is up."""
        if self._link is not None:
            self._link.adopt(adoption.run_id, adoption.epoch)
            adoption.expect_within(self._leases.certainty)

    def holds_executions(self) -> bool:
        """Whether anything of ours may still run there."""
        return bool(self._executions)

    def proved_dead(self) -> None:
        """A new life of the node has begun elsewhere: nothing of the former one is left."""
        for execution_id in list(self._executions):
            self._lose(execution_id)

    def inherit(self, other: KnownNode) -> None:
        """Take over what is on the node, which answers here now and not at the other's address."""
        for execution in (*other._executions.values(), *other._taken.values()):
            execution.node = self
            if execution.has_place:
                other.in_flight -= 1
                self.in_flight += 1
        self._executions, other._executions = other._executions, {}
        self._taken, other._taken = other._taken, {}
        self.node = other.node

    # What the link tells.

    def welcomed(self, node: Node, link: NodeLink, held: frozenset[str]) -> None:
        """The node answered (LinkListener). It still holds what is in `held`, if it is the one that was lost."""
        self.admit(self, node)
        if node.name == self.node.name:
            still = held if node.boot_id == self.node.boot_id else frozenset()
            for execution_id in set(self._executions) - still:
                self._lose(execution_id)
            self._taken = {each: execution for each, execution in self._taken.items() if each in still}
        self._welcomes += 1
        self._link = link
        self._describe(node)
        for adoption in self._adoptions.of(node.name):
            self.adopt(adoption)
        for execution in self._executions.values():
            execution.resume()
            if execution.cancel_reason is not None:
                delay = max(0.0, execution.stop_at - asyncio.get_running_loop().time())
                link.cancel(execution.execution_id, execution.cancel_reason, delay)
        self.status_changed(node.status)

    def offer_changed(self, node: Node) -> None:
        """The node offers other agents from now on (LinkListener)."""
        self._describe(node)
        self._on_change(self, Change.OFFER)

    def _describe(self, node: Node) -> None:
        self.node = node
        self._agents = frozenset(agent.name for agent in node.agents)
        self._use_model = {agent.name: agent.uses_model for agent in node.agents}

    def status_changed(self, status: NodeStatus) -> None:
        """The node says how it fares (LinkListener)."""
        self._status = status
        self._foreign = max(0, status.running_steps - self.in_flight)
        had_quota = self._held_back
        self._held_back = {each.agent: each for each in status.held_back}
        if status.draining:
            self._become(NodeState.DRAINING, _DRAINING)
        else:
            self._become(NodeState.READY, "")
        self._on_change(self, Change.OFFER if had_quota != self._held_back else Change.ROOM)
        if had_quota or self._held_back:
            self._tell_held_back()
        self._finish_if_drained()

    def run_adopted(self, adopted: RunAdopted) -> None:
        """What it holds of a run is ours (LinkListener)."""
        adoption = self._adoptions.take(self.node.name, adopted)
        held = []
        for execution_id in adopted.running | adopted.ended:
            execution = self._take_in(execution_id)
            name = ExecutionName.of_id(execution_id, adopted.run_id)
            if adoption is None or name is None:  # asked too long ago, or not one of ours
                self.leave(execution)
            else:
                held.append(AdoptedExecution(execution, name, execution_id in adopted.ended))
        if adoption is not None and adopted.stale:
            adoption.refused()
        elif adoption is not None and adopted.unbegun:
            adoption.answered(None)
        elif adoption is not None:
            adoption.answered(held)

    def execution_event(self, execution_id: str, event: StepEvent) -> None:
        """An execution got on (LinkListener)."""
        execution = self._executions.get(execution_id)
        if isinstance(event, StepEnded):
            if execution is not None and execution.started is None:
                execution.tell(event.start)
            if execution is not None and execution.keeps:
                self._taken[execution_id] = execution
            else:
                self._acknowledge_unless_kept(execution_id)
            self._end(execution_id, event.outcome)
        elif execution is not None:
            execution.tell(event)

    def execution_withheld(self, execution_id: str, size: int) -> None:
        """An execution has ended, and its ending is large (LinkListener)."""
        execution = self._executions.get(execution_id)
        if execution is None:
            self._acknowledge_unless_kept(execution_id)
            return
        self._free_place(execution)
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
            self._agents -= {self._executions[execution_id].agent}
            self._on_change(self, Change.OFFER)
        self.acknowledge(execution_id)
        self._end(execution_id, rejection)

    def full_until(self) -> float:
        """Loop time until which it said to be full."""
        return self._full_until

    def lost(self, error: FanfoldError) -> None:
        """The link ended. What was there may go on until its lease ends, so it is not lost before that (F2)."""
        unsent = []
        if self._link is not None:
            unsent = self._link.unsent()
            self._wait_for_leases()
        self._link = None
        if self.node.name:
            self._become(NodeState.LOST, error.message)
        else:
            self._become(NodeState.CONNECTING, error.message)
        for execution_id in unsent:
            self._end(execution_id, Rejection(reason=RejectionReason.DRAINING))

    def _tell_held_back(self) -> None:
        """Have the runs of executions that did not get on lately told what their agents wait on (C42)."""
        for execution in self._executions.values():
            held_back = self._held_back.get(execution.agent)
            if held_back is None:
                execution.resume()
            elif execution.got_on:
                execution.got_on = False
            else:
                execution.suspend(WaitsOn.QUOTA, held_back.waiting_on)

    def _wait_for_leases(self) -> None:
        certainty = self._leases.certainty
        if self._executions:
            asyncio.get_running_loop().call_later(certainty, self._give_up, self._welcomes)
        for execution in self._executions.values():
            reason = f"node {self.node.name}, whose link is down, or the end of its lease"
            execution.suspend(WaitsOn.NODE, reason)
        for adoption in self._adoptions.of(self.node.name):
            adoption.expect_within(certainty)

    def _give_up(self, welcomes: int) -> None:
        """The leases of what was there have ended, unless a link that came back meanwhile has renewed them."""
        if welcomes == self._welcomes:
            self.proved_dead()

    def _take_in(self, execution_id: str) -> Execution:
        """Keep count of an execution that runs there already, or has ended."""
        former = self._executions.get(execution_id)
        execution = self._executions[execution_id] = Execution(self, execution_id, keeps=True, has_place=True)
        self._taken.pop(execution_id, None)
        self.in_flight += 1
        self._foreign = max(0, self._foreign - 1)
        if former is not None:  # of this run, when it was held here with an older epoch
            self._conclude(former, Rejection(reason=RejectionReason.STALE_EPOCH))
        return execution

    def _stop(self, execution: Execution, reason: str, delay: float) -> None:
        execution.cancel_reason = reason
        execution.stop_at = asyncio.get_running_loop().time() + delay
        if self._link is not None and not self._link.cancel(execution.execution_id, reason, delay):
            self._lose(execution.execution_id)

    def _acknowledge_unless_kept(self, execution_id: str) -> None:
        """An ending has come that is not to be kept there for anybody that is known."""
        asked = self._adoptions.of(self.node.name)
        to_be_adopted = bool(asked) and any(execution_id.startswith(f"{each.run_id}/") for each in asked)
        if execution_id not in self._taken and not to_be_adopted:
            self.acknowledge(execution_id)

    def _lose(self, execution_id: str) -> None:
        self._end(execution_id, Lost(self.node.name, self._executions[execution_id].started))

    def _end(self, execution_id: str, ending: Ending) -> None:
        execution = self._executions.pop(execution_id, None)
        if execution is not None:
            self._conclude(execution, ending)
        self._finish_if_drained()

    def _conclude(self, execution: Execution, ending: Ending) -> None:
        execution.end(ending)
        self._free_place(execution)

    def _free_place(self, execution: Execution) -> None:
        if execution.has_place:
            execution.has_place = False
            self.in_flight -= 1
            self._on_change(self, Change.ROOM)

    def _finish_if_drained(self) -> None:
        if self.state is not NodeState.DRAINING or self._link is None:
            return
        if not self._executions and not self._taken and not self._adoptions.of(self.node.name):
            self._link.finish()

    def _become(self, state: NodeState, waiting_on: str) -> None:
        changed = state is not self.state
        self.state = state
        self.waiting_on = waiting_on
        if changed:
            self._state_changed_at = datetime.now(UTC)
            self._on_change(self, Change.OFFER)
