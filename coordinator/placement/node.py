"""One node that the coordinator knows: its link, and the executions that are there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from coordinator.placement.adoption import AdoptedExecution, Adoption, Adoptions
from coordinator.placement.execution import Ending, Execution, ExecutionName, Lost
from coordinator.placement.standing import Change, Standing
from coordinator.scope import Scope
from coordinator.tracing import Attempted
from coordinator.waiting import WaitsOn
from fanfold.errors import FanfoldError
from fanfold.model.node import Node, NodeState, NodeStatus, NodeView
from fanfold.model.step import StepEnded, StepEvent
from fanfold.ports import ExecutionStart, NodeLink, OnStepEvent, Rejection, RejectionReason, RunAdopted


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

    Placement judges it by its `standing`, of whose changes `on_change` is told; `adoptions` are to be asked of it, by
    its name.
    """

    def __init__(
        self, address: str, on_change: Callable[[KnownNode, Change], None], leases: Leases, adoptions: Adoptions
    ) -> None:
        self.address = address
        self.standing = Standing(partial(on_change, self))
        self._leases = leases
        self._adoptions = adoptions
        self._link: NodeLink | None = None
        self._welcomes = 0
        self._executions: dict[str, Execution] = {}
        self._taken: dict[str, Execution] = {}
        """Executions whose ending has arrived and is to stay on the node until it is acknowledged."""
        self.admit: Callable[[KnownNode, Node], None] = lambda _known, _node: None
        """Raises FanfoldError when a node that has answered is not to be used."""

    @property
    def name(self) -> str:
        """The node's own name; empty until it has answered."""
        return self.standing.node.name

    def view(self) -> NodeView:
        """The node as it is shown."""
        return self.standing.view_at(self.address)

    def is_linked(self) -> bool:
        """Whether its link is up."""
        return self._link is not None

    # What the executor does with it.

    def execute(
        self, start: ExecutionStart, listener: OnStepEvent, scope: Scope, traced: Attempted | None = None
    ) -> Execution:
        """Send an execution to the node. The caller has taken a place there (`Standing.in_flight`)."""
        execution = Execution(self, start.execution_id, start.spec.agent, keeps=scope.receipts is not None)
        execution.traced = traced
        execution.attend(listener, scope)
        if self._link is None or self.standing.state is not NodeState.READY:
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
            self._end(execution.execution_id, Lost(self.name, execution.started))

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
                other.standing.in_flight -= 1
                self.standing.in_flight += 1
        self._executions, other._executions = other._executions, {}
        self._taken, other._taken = other._taken, {}
        self.standing.node = other.standing.node

    # What the link tells.

    def welcomed(self, node: Node, link: NodeLink, held: frozenset[str]) -> None:
        """The node answered (LinkListener). It still holds what is in `held`, if it is the one that was lost."""
        self.admit(self, node)
        if node.name == self.name:
            still = held if node.boot_id == self.standing.node.boot_id else frozenset()
            for execution_id in set(self._executions) - still:
                self._lose(execution_id)
            self._taken = {each: execution for each, execution in self._taken.items() if each in still}
        self._welcomes += 1
        self._link = link
        self.standing.describe(node)
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
        self.standing.offer(node)

    def status_changed(self, status: NodeStatus) -> None:
        """The node says how it fares (LinkListener)."""
        held_back_before = self.standing.held_back
        self.standing.fare(status)
        if held_back_before or self.standing.held_back:
            self._tell_held_back()
        self._finish_if_drained()

    def run_adopted(self, adopted: RunAdopted) -> None:
        """What it holds of a run is ours (LinkListener)."""
        adoption = self._adoptions.take(self.name, adopted)
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
            self.standing.be_full(rejection.retry_delay)
        elif rejection.reason is RejectionReason.DRAINING:
            self.standing.drain()
        elif rejection.reason is RejectionReason.AGENT_NOT_OFFERED and execution_id in self._executions:
            self.standing.withdraw(self._executions[execution_id].agent)
        self.acknowledge(execution_id)
        self._end(execution_id, rejection)

    def lost(self, error: FanfoldError) -> None:
        """The link ended. What was there may go on until its lease ends, so it is not lost before that (F2)."""
        unsent = []
        if self._link is not None:
            unsent = self._link.unsent()
            self._wait_for_leases()
        self._link = None
        self.standing.become(NodeState.LOST if self.name else NodeState.CONNECTING, error.message)
        for execution_id in unsent:
            self._end(execution_id, Rejection(reason=RejectionReason.DRAINING))

    def _tell_held_back(self) -> None:
        """Have the runs of executions that did not get on lately told what their agents wait on (C42)."""
        for execution in self._executions.values():
            held_back = self.standing.held_back.get(execution.agent)
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
            reason = f"node {self.name}, whose link is down, or the end of its lease"
            execution.suspend(WaitsOn.NODE, reason)
        for adoption in self._adoptions.of(self.name):
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
        self.standing.count_adopted()
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
        asked = self._adoptions.of(self.name)
        to_be_adopted = bool(asked) and any(execution_id.startswith(f"{each.run_id}/") for each in asked)
        if execution_id not in self._taken and not to_be_adopted:
            self.acknowledge(execution_id)

    def _lose(self, execution_id: str) -> None:
        self._end(execution_id, Lost(self.name, self._executions[execution_id].started))

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
            self.standing.free_place()

    def _finish_if_drained(self) -> None:
        if self.standing.state is not NodeState.DRAINING or self._link is None:
            return
        if not self._executions and not self._taken and not self._adoptions.of(self.name):
            self._link.finish()
