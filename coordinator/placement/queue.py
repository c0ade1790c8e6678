"""Which node takes a step, and where steps wait while none can."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coordinator.placement.node import KnownNode
from coordinator.placement.nodes import Nodes
from coordinator.placement.standing import Change, Standing
from coordinator.placement.turns import Need, Place, Turns
from coordinator.scope import Scope
from coordinator.waiting import WaitsOn
from fanfold.measures import LASTING, Spreads
from fanfold.model.node import NodeState
from fanfold.model.step import AgentStepSpec, FailureCode, StepFailure

_LOAD_OF_HELD_BACK = 1e6
"""Makes a node whose provider holds an agent's steps back the last that is chosen for it, whatever the others' load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a step waits for a node that could take it, in seconds (C3). A full node is waited for without end.

    With a `quota` of 0, steps of a model whose quota is gone go to their nodes all the same, which refuse them (F8).
    """

    agent_unknown: float = 2.0
    unplaceable: float = 30.0
    quota: float = 0.0


class PlacementQueue:
    """Hands out places on nodes: on the least loaded one that offers the agent and carries the labels.

    Steps that find none wait for their turn (`turns`). A place that is handed out must be given back by `release`.
    """

    def __init__(self, nodes: Nodes, patience: Patience) -> None:
        self._nodes = nodes
        self.patience = patience
        self.waits = Spreads(LASTING)
        """How long steps have waited for a place, by the result."""
        self._placed, self._refused = self.waits["placed",], self.waits["refused",]
        self._turns = Turns()
        nodes.listen(self._on_change)

    @property
    def waiting(self) -> int:
        """How many steps wait for a place."""
        return len(self._turns)

    def take(self, spec: AgentStepSpec) -> KnownNode | None:
        """A node with a place taken on it, if there is one and nobody waits for such a place."""
        need = Need.of(spec)
        node = None if need in self._turns else self._take_place(need)
        if node is not None:
            self._placed.add(0.0)
        return node

    async def acquire(self, spec: AgentStepSpec, scope: Scope) -> KnownNode | StepFailure:
        """A node with a place taken on it, or why the step cannot be placed (AGENT_UNKNOWN, UNPLACEABLE)."""
        if (taken := self.take(spec)) is not None:
            return taken
        need = Need.of(spec)
        loop = asyncio.get_running_loop()
        since = loop.time()
        hopeless_since: float | None = None
        while True:
            failure, patience = self._judge(need)
            hopeless_since = None if failure is None else hopeless_since or loop.time()
            why = failure.message if failure else f"every node that offers agent {need.agent!r} is full"
            try:
                async with asyncio.timeout_at(None if hopeless_since is None else hopeless_since + patience):
                    with scope.waiting.on(_waits_on(failure), f"a place: {why}"):
                        node = await self._wait_for_turn(need, scope)
            except TimeoutError:
                assert failure is not None, "only hopeless waiting has an end"
                self._refused.add(loop.time() - since)
                return replace(failure, message=f"{failure.message}; waited {patience:g} s")
            node = node or self._take_place(need)
            if node is not None:
                self._placed.add(loop.time() - since)
                return node

    def release(self, node: KnownNode) -> None:
        """Give a place back."""
        node.standing.in_flight -= 1
        self._serve()

    def retry_when_not_full(self, node: KnownNode) -> None:
        """Serve again once a node that said to be full will have room."""
        asyncio.get_running_loop().call_at(node.standing.full_until, self._serve)

    def _take_place(self, need: Need) -> KnownNode | None:
        now = asyncio.get_running_loop().time()
        best, least = None, 0.0
        for node in self._nodes:
            standing = node.standing
            if standing.offers(need.agent) and standing.has_room(now) and standing.carries(need.labels):
                load = standing.load()
                if held_back := standing.held_back.get(need.agent):
                    if held_back.quota and self.patience.quota:
                        continue
                    load += _LOAD_OF_HELD_BACK
                if best is None or load < least:
                    best, least = node, load
        if best is not None:
            best.standing.in_flight += 1
        return best

    async def _wait_for_turn(self, need: Need, scope: Scope) -> KnownNode | None:
        place: Place = asyncio.get_running_loop().create_future()
        self._turns.add(scope, need, place)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and (node := place.result()) is not None:
                self.release(node)
            raise
        finally:
            self._turns.discard(scope, need, place)

    def _on_change(self, _node: KnownNode, change: Change) -> None:
        if change is Change.OFFER:
            self._turns.wake_all()
        else:
            self._serve()

    def _serve(self) -> None:
        self._turns.serve(self._take_place)

    def _judge(self, need: Need) -> tuple[StepFailure | None, float]:
        """What to answer if nothing changes, and after how many seconds; nothing while a node is merely full.

        The answer says what is missing, and nothing about the nodes that are there (F21).
        """
        offering = [node.standing for node in self._nodes if node.standing.offers(need.agent)]
        if able := [standing for standing in offering if standing.carries(need.labels)]:
            return self._judge_quota(need, able)
        patience, code = self.patience.unplaceable, FailureCode.UNPLACEABLE
        if offering:
            labels = ", ".join(f"{name}={value}" for name, value in need.labels)
            missing = f"no live node that offers agent {need.agent!r} carries the labels {labels}"
        elif self._nodes.has_ever_offered(need.agent):
            missing = f"no live node offers agent {need.agent!r}"
        else:
            code = FailureCode.AGENT_UNKNOWN
            missing = f"no node has ever offered an agent {need.agent!r}"
            if nearest := self._nodes.nearest_agent(need.agent):
                missing = f"{missing} (did you mean {nearest!r}?)"
            states = {node.standing.state for node in self._nodes}
            # A node that was never reached may still turn out to offer it.
            if NodeState.READY in states and NodeState.CONNECTING not in states:
                patience = self.patience.agent_unknown
        retryable = code is FailureCode.UNPLACEABLE
        return StepFailure(code=code, message=missing, retryable=retryable), patience

    def _judge_quota(self, need: Need, able: Sequence[Standing]) -> tuple[StepFailure | None, float]:
        """What to answer if every node that is able to take the step waits for a quota; nothing if any does not."""
        waits = [held_back for each in able if (held_back := each.held_back.get(need.agent)) and held_back.quota]
        if not self.patience.quota or len(waits) < len(able):
            return None, 0.0
        message = f"{waits[0].waiting_on} is exhausted"
        return StepFailure(code=FailureCode.QUOTA_EXHAUSTED, message=message), self.patience.quota


def _waits_on(failure: StepFailure | None) -> WaitsOn:
    """What a step waits on that will end so if nothing changes; None is one that only waits for room."""
    return WaitsOn.QUOTA if failure and failure.code is FailureCode.QUOTA_EXHAUSTED else WaitsOn.PLACE
