"""What a node offers, how it fares and how much room it has: what placement judges it by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum, auto

from fanfold.model.node import HeldBack, Node, NodeState, NodeStatus, NodeView

_LONGEST_FULL_SECONDS = 60.0
"""Most that a node that says to be full is left alone, whatever it says."""


class Change(Enum):
    """What changed about a node: whom it can serve at all, or only how much room it has."""

    OFFER = auto()
    ROOM = auto()


class Standing:
    """How one node stands, by its own word, and by our count of the places that are taken there (`in_flight`).

    Whoever takes a place counts it up. `on_change` is told whenever the offer changed, or room has come.
    """

    def __init__(self, on_change: Callable[[Change], None]) -> None:
        self._on_change = on_change
        self.node = Node(name="")
        """What it was when it was last heard; without a name until then."""
        self.state = NodeState.CONNECTING
        self.waiting_on = "its link is being made"
        self.in_flight = 0
        self.full_until = 0.0
        """Loop time until which it said to be full."""
        self.agents: frozenset[str] = frozenset()
        """Names of the agents it offered when it was last heard."""
        self.held_back: Mapping[str, HeldBack] = {}
        """Why an agent's steps do not get on there, for those whose provider holds them back (F8, F9)."""
        self._use_model: dict[str, bool] = {}
        self._status = NodeStatus()
        self._foreign = 0
        self._state_changed_at = datetime.now(UTC)

    # What placement asks.

    def offers(self, agent: str) -> bool:
        """Whether it is ready and has the agent."""
        return self.state is NodeState.READY and agent in self.agents

    def uses_model(self, agent: str) -> bool | None:
        """Whether it says that the agent spends model tokens; None if it has told nothing of the agent (C13)."""
        return self._use_model.get(agent)

    def carries(self, labels: Sequence[tuple[str, str]]) -> bool:
        """Whether it carries every one of the labels (C6)."""
        return not labels or all(self.node.labels.get(name) == value for name, value in labels)

    def has_room(self, now: float) -> bool:
        """Whether it would take one more step now.

        A node that others have filled is asked for a first place all the same: else it would not know that it is to be
        shared, and they would not want less.
        """
        others = self._foreign if self.in_flight else 0
        return self.in_flight + others < self._status.max_concurrent_steps and now >= self.full_until

    def load(self) -> float:
        """Steps there against steps it would like to have; our own are counted now, others' by its last report."""
        return (self.in_flight + self._foreign) / max(1, self._status.concurrency_hint)

    def hint(self) -> int:
        """Its part of the mesh's concurrency hint (C10), shared evenly with other coordinators that have work there."""
        if self.state is not NodeState.READY or not self._status.concurrency_hint:
            return 0
        return max(1, self._status.concurrency_hint // max(1, self._status.coordinators))

    def view_at(self, address: str) -> NodeView:
        """The node as it is shown."""
        return NodeView(
            node=replace(self.node, status=self._status),
            address=address,
            state=self.state,
            steps_in_flight=self.in_flight,
            waiting_on=self.waiting_on,
            state_changed_at=self._state_changed_at,
        )

    # What becomes of it.

    def describe(self, node: Node) -> None:
        """What it is and offers from now on; `on_change` is not told."""
        self.node = node
        self.agents = frozenset(agent.name for agent in node.agents)
        self._use_model = {agent.name: agent.uses_model for agent in node.agents}

    def offer(self, node: Node) -> None:
        """It offers other agents from now on."""
        self.describe(node)
        self._on_change(Change.OFFER)

    def withdraw(self, agent: str) -> None:
        """It does not offer the agent any more, though it has not said so yet."""
        self.agents -= {agent}
        self._on_change(Change.OFFER)

    def fare(self, status: NodeStatus) -> None:
        """It says how it fares, over a link that is up."""
        self._status = status
        self._foreign = max(0, status.running_steps - self.in_flight)
        held_back = {each.agent: each for each in status.held_back}
        changed = held_back != self.held_back
        self.held_back = held_back
        if status.draining:
            self.drain()
        else:
            self.become(NodeState.READY, "")
        self._on_change(Change.OFFER if changed else Change.ROOM)

    def hold_back(self, held_back: HeldBack) -> None:
        """An agent's steps are held back there, until the node says how it fares."""
        self.held_back = {held_back.agent: held_back, **self.held_back}

    def be_full(self, seconds: float) -> None:
        """It says to be full for so long."""
        self.full_until = asyncio.get_running_loop().time() + min(seconds, _LONGEST_FULL_SECONDS)

    def drain(self) -> None:
        """It takes nothing more."""
        self.become(NodeState.DRAINING, "it finishes what it runs and stops")

    def become(self, state: NodeState, waiting_on: str) -> None:
        """It is in this state, and if not ready, because of this."""
        changed = state is not self.state
        self.state = state
        self.waiting_on = waiting_on
        if changed:
            self._state_changed_at = datetime.now(UTC)
            self._on_change(Change.OFFER)

    def count_adopted(self) -> None:
        """One of the steps that were others' until now is ours."""
        self.in_flight += 1
        self._foreign = max(0, self._foreign - 1)

    def free_place(self) -> None:
        """A place that was taken is free."""
        self.in_flight -= 1
        self._on_change(Change.ROOM)
