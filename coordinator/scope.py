"""For whom steps are run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from coordinator.budget import TokenBudget
from coordinator.pace import Pace
from coordinator.tracing import UNTRACED, RunTrace
from coordinator.waiting import Waiting
from fanfold.errors import Aborted
from fanfold.model.principal import outermost

if TYPE_CHECKING:
    from coordinator.placement.adoption import AdoptedExecution

Acknowledge = Callable[[], None]
"""Tells a node that an ending need not be kept for us any more."""


class Hold:
    """A coordinator's hold on a run. Once it is given up, the run's executions are another one's to stop.

    `is_certain` says whether nobody else can hold the run yet; a process that was frozen may wake up too late (F5). A
    hold that is not certain may be so again, as after an outage of the journal.
    """

    __slots__ = ("_changed", "_is_certain", "is_given_up")

    def __init__(self, is_certain: Callable[[], bool] = lambda: True) -> None:
        self._is_certain = is_certain
        self._changed = asyncio.Event()
        self.is_given_up = False

    def give_up(self) -> None:
        """The run goes on elsewhere."""
        self.is_given_up = True
        self._changed.set()

    def renewed(self) -> None:
        """It is certain again, for a while."""
        self._changed.set()

    def is_certain(self) -> bool:
        """Whether a step may be sent to a node now."""
        return not self.is_given_up and self._is_certain()

    def require(self) -> None:
        """Raise Aborted if the run was given up."""
        if self.is_given_up:
            raise Aborted("the run is another coordinator's by now", reason="RUN_MOVED")

    async def until_certain(self) -> None:
        """Wait until a step may be sent to a node. Raises Aborted if the run is given up instead."""
        while not self.is_certain():
            self.require()
            self._changed.clear()
            await self._changed.wait()


class Receipts:
    """How the nodes of a journaled run are told that the ending of a step is durable, by the step's key (C19)."""

    def __init__(self) -> None:
        self._due: dict[str, list[Acknowledge]] = {}

    def add(self, name: str, acknowledge: Acknowledge) -> None:
        """An execution of the step has ended; `acknowledge` is called once that is durable."""
        self._due.setdefault(name, []).append(acknowledge)

    def settled(self, name: str) -> None:
        """The step's ending is durable."""
        for acknowledge in self._due.pop(name, ()):
            acknowledge()


async def _no_matter(_node: str) -> None:
    """Nobody keeps which nodes are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The run that steps belong to, and whose it is. `progress` says whether anybody wants to hear of progress.

    `budget` is what all of its steps may spend, None for as much as they like.

    For journaled runs: `created_at` is when the run was accepted, `epoch` is the one with which this coordinator holds
    it, `use_node` is awaited before a step is sent to a node, by the node's name, and raises if it must not be;
    `receipts` are given once an ending is durable; `adopted` are the executions, by key, that a former holder has left
    on nodes. `lost_nodes` are what it used and what has lost all that ran there; `unaccounted` are the steps, by
    position and stage, that may have been among that.
    """

    run_id: str
    owner: str
    progress: bool
    waiting: Waiting = field(default_factory=Waiting)
    budget: TokenBudget | None = None
    created_at: datetime | None = None
    epoch: int = 1
    hold: Hold = field(default_factory=Hold)
    use_node: Callable[[str], Awaitable[None]] = _no_matter
    receipts: Receipts | None = None
    adopted: dict[str, AdoptedExecution] = field(default_factory=dict)
    lost_nodes: set[str] = field(default_factory=set)
    unaccounted: set[tuple[int, int]] = field(default_factory=set)
    pace: Pace = field(default_factory=Pace)
    trace: RunTrace = UNTRACED

    @property
    def share(self) -> str:
        """Whose share of the capacity its steps use (C45): nobody gets more by nesting principals in theirs."""
        return outermost(self.owner)
