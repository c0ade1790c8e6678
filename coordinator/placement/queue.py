"""Which node takes a step, and where steps wait while none can."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from coordinator.placement.node import Change, KnownNode
from coordinator.placement.nodes import Nodes
from fanfold.model.node import NodeState
from fanfold.model.step import AgentStepSpec, FailureCode, StepFailure

_Place = KnownNode | None
"""A node with a place taken on it; None tells a waiting step to look again, because the nodes changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a step waits for a node that could take it, in seconds (C3). A full node is waited for without end."""

    agent_unknown: float = 2.0
    unplaceable: float = 30.0


class Need(NamedTuple):
    """What a step needs of a node. Steps with the same need wait in one line."""

    agent: str
    labels: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, spec: AgentStepSpec) -> Need:
        """The need of a step."""
        labels = spec.policy.node_labels
        return cls(spec.agent, tuple(sorted(labels.items())) if labels else ())


class PlacementQueue:
    """Hands out places on nodes: the least loaded node that offers the agent and carries the labels, first come first.

    A place that is handed out must be given back by `release`.
    """

    def __init__(self, nodes: Nodes, patience: Patience) -> None:
        self._nodes = nodes
        self._patience = patience
        self._lines: dict[Need, deque[asyncio.Future[_Place]]] = {}
        nodes.listen(self._on_change)

    async def acquire(self, spec: AgentStepSpec) -> KnownNode | StepFailure:
        """A node with a place taken on it, or why the step cannot be placed (AGENT_UNKNOWN, UNPLACEABLE)."""
        need = Need.of(spec)
        if need not in self._lines and (node := self._take_place(need)) is not None:
            return node
        loop = asyncio.get_running_loop()
        hopeless_since: float | None = None
        while True:
            failure, patience = self._judge(need)
            hopeless_since = None if failure is None else hopeless_since or loop.time()
            try:
                async with asyncio.timeout_at(None if hopeless_since is None else hopeless_since + patience):
                    node = await self._stand_in_line(need)
            except TimeoutError:
                assert failure is not None, "only hopeless waiting has an end"
                return failure
            node = node or self._take_place(need)
            if node is not None:
                return node

    def release(self, node: KnownNode) -> None:
        """Give a place back."""
        node.in_flight -= 1
        self._serve_lines()

    def retry_when_not_full(self, node: KnownNode) -> None:
        """Serve the lines again once a node that said to be full will have room."""
        asyncio.get_running_loop().call_at(node.full_until(), self._serve_lines)

    def _take_place(self, need: Need) -> KnownNode | None:
        now = asyncio.get_running_loop().time()
        fitting = [node for node in self._nodes if node.offers(need.agent) and node.carries(need.labels)]
        best = min((node for node in fitting if node.has_room(now)), key=KnownNode.load, default=None)
        if best is not None:
            best.in_flight += 1
        return best

    async def _stand_in_line(self, need: Need) -> _Place:
        place: asyncio.Future[_Place] = asyncio.get_running_loop().create_future()
        line = self._lines.setdefault(need, deque())
        line.append(place)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and (node := place.result()) is not None:
                self.release(node)
            raise
        finally:
            if place in line:
                line.remove(place)
            if not line and self._lines.get(need) is line:
                del self._lines[need]

    def _on_change(self, _node: KnownNode, change: Change) -> None:
        if change is Change.OFFER:
            self._wake_all()
        else:
            self._serve_lines()

    def _wake_all(self) -> None:
        lines, self._lines = self._lines, {}
        for line in lines.values():
            for place in line:
                if not place.done():
                    place.set_result(None)

    def _serve_lines(self) -> None:
        for need, line in list(self._lines.items()):
            while line:
                if line[0].done():
                    line.popleft()
                    continue
                node = self._take_place(need)
                if node is None:
                    break
                line.popleft().set_result(node)

    def _judge(self, need: Need) -> tuple[StepFailure | None, float]:
        """What to answer if nothing changes, and after how many seconds; nothing while a node is merely full.

        The answer says what is missing, and nothing about the nodes that are there (F21).
        """
        offering = [node for node in self._nodes if node.offers(need.agent)]
        if any(node.carries(need.labels) for node in offering):
            return None, 0.0
        patience, code = self._patience.unplaceable, FailureCode.UNPLACEABLE
        if offering:
            labels = ", ".join(f"{name}={value}" for name, value in need.labels)
            missing = f"no live node that offers agent {need.agent!r} carries the labels {labels}"
        elif self._nodes.has_ever_offered(need.agent):
            missing = f"no live node offers agent {need.agent!r}"
        else:
            code = FailureCode.AGENT_UNKNOWN
            missing = f"no node has ever offered an agent {need.agent!r}"
            states = {node.state for node in self._nodes}
            # A node that was never reached may still turn out to offer it.
            if NodeState.READY in states and NodeState.CONNECTING not in states:
                patience = self._patience.agent_unknown
        retryable = code is FailureCode.UNPLACEABLE
        return StepFailure(code=code, message=f"{missing}; waited {patience:g} s", retryable=retryable), patience
