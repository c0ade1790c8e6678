"""Whose turn it is among waiting steps: round robin by principal, then by run (C45)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from coordinator.placement.node import KnownNode
from coordinator.scope import Scope
from fanfold.model.step import AgentStepSpec

Place = asyncio.Future[KnownNode | None]
"""Where a step waits: for a node with a place taken on it, or None, which tells it to look again."""


class Need(NamedTuple):
    """What a step needs of a node."""

    agent: str
    labels: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, spec: AgentStepSpec) -> Need:
        """The need of a step."""
        labels = spec.policy.node_labels
        return cls(spec.agent, tuple(sorted(labels.items())) if labels else ())


_Run = dict[Need, dict[Place, None]]
"""The waiting steps of a run by need, each line in the order in which they came."""


class Turns:
    """The waiting steps. Who was served goes to the end: first the owner among owners, then the run among its runs.

    Dictionaries keep the order and let any step leave at no cost, which a queue would not.
    """

    def __init__(self) -> None:
        self._owners: dict[str, dict[str, _Run]] = {}
        self._needs: Counter[Need] = Counter()

    def __len__(self) -> int:
        """How many steps wait."""
        return self._needs.total()

    def __contains__(self, need: object) -> bool:
        """Whether any step with this need waits."""
        return need in self._needs

    def add(self, scope: Scope, need: Need, place: Place) -> None:
        """A step begins to wait."""
        self._owners.setdefault(scope.share, {}).setdefault(scope.run_id, {}).setdefault(need, {})[place] = None
        self._needs[need] += 1

    def discard(self, scope: Scope, need: Need, place: Place) -> None:
        """A step waits no more; nothing happens if it was served already."""
        runs = self._owners.get(scope.share, {})
        line = runs.get(scope.run_id, {}).get(need, {})
        if place in line:
            self._take(scope.share, scope.run_id, need, place)

    def wake_all(self) -> None:
        """Tell every step to look again; those that still wait then add themselves anew, in the same order."""
        owners, self._owners = self._owners, {}
        self._needs.clear()
        for runs in owners.values():
            for lines in runs.values():
                for line in lines.values():
                    for place in line:
                        _tell(place, None)

    def serve(self, take: Callable[[Need], KnownNode | None]) -> None:
        """Give out places, as long as `take` finds one for a need that somebody has."""
        full: set[Need] = set()
        while len(full) < len(self._needs):
            for owner in list(self._owners):
                self._serve_one(owner, take, full)

    def _serve_one(self, owner: str, take: Callable[[Need], KnownNode | None], full: set[Need]) -> None:
        """Serve the owner's next step for whose need there is a place; needs without are added to `full`."""
        for run_id, lines in self._owners[owner].items():
            for need, line in lines.items():
                if need in full:
                    continue
                node = take(need)
                if node is None:
                    full.add(need)
                    continue
                place = next(iter(line))
                self._take(owner, run_id, need, place)
                self._to_the_end(owner, run_id)
                _tell(place, node)
                return

    def _take(self, owner: str, run_id: str, need: Need, place: Place) -> None:
        runs = self._owners[owner]
        lines = runs[run_id]
        del lines[need][place]
        if not lines[need]:
            del lines[need]
        if not lines:
            del runs[run_id]
        if not runs:
            del self._owners[owner]
        self._needs[need] -= 1
        if not self._needs[need]:
            del self._needs[need]

    def _to_the_end(self, owner: str, run_id: str) -> None:
        runs = self._owners.pop(owner, None)
        if runs is None:
            return
        self._owners[owner] = runs
        if run_id in runs:
            runs[run_id] = runs.pop(run_id)


def _tell(place: Place, node: KnownNode | None) -> None:
    if not place.done():
        place.set_result(node)
    elif node is not None:
        # It was cancelled and has not woken yet to say so; its place is the next one's.
        node.standing.in_flight -= 1
