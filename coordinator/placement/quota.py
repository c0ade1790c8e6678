"""Steps whose model's provider has no quota left: they wait for it, or end, as the configuration says (F8)."""

from __future__ import annotations

import asyncio

from coordinator.placement.node import KnownNode
from coordinator.scope import Scope
from coordinator.waiting import WaitsOn
from fanfold.backoff import full_jitter
from fanfold.model.node import HeldBack
from fanfold.model.step import FailureCode, StepOutcome

_FIRST_PAUSE_SECONDS = 0.5
_MOST_PAUSE_SECONDS = 10.0


class QuotaWait:
    """The wait of one attempt, for `patience` seconds in all from the first time that a node has said so."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._until: float | None = None
        self._times = 0

    def is_due(self, outcome: StepOutcome) -> bool:
        """Whether the step is to be placed again, after a `pause`, because of what it came to."""
        failure = outcome.failure
        if not self._patience or failure is None or failure.code is not FailureCode.QUOTA_EXHAUSTED:
            return False
        now = asyncio.get_running_loop().time()
        self._until = self._until or now + self._patience
        return now < self._until

    async def pause(self, outcome: StepOutcome, node: KnownNode, scope: Scope) -> None:
        """Hold the agent's steps back on the node that said so, and wait.

        Other steps of the agent are placed there when the node says that there is quota again. Agents that are programs
        say QUOTA_EXHAUSTED without their node's knowing of it: those are tried again, at random moments (F9).
        """
        self._times += 1
        node.standing.hold_back(
            HeldBack(agent=outcome.agent, waiting_on="the quota of its model's provider", quota=True)
        )
        why = outcome.failure.message if outcome.failure is not None else ""
        with scope.waiting.on(WaitsOn.QUOTA, f"a quota: {why}"):
            await asyncio.sleep(full_jitter(self._times, first=_FIRST_PAUSE_SECONDS, most=_MOST_PAUSE_SECONDS))
