"""A call whose step has not ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinator.life import StepLife, failed
from coordinator.scripts.host.calls import Call
from fanfold.model.step import FailureCode, StepEvent, StepFailure


class Running:
    """A call under way: the life of its step, which `hear` is told, and the task that carries it out."""

    def __init__(self, call: Call, hear: Callable[[Call, StepEvent], None]) -> None:
        self.call = call
        self.life = StepLife(call.spec, lambda event: hear(call, event))
        self.task: asyncio.Task[None] | None = None
        self.is_started = False
        self.has_ended = False
        """Whether its end was told while it counted."""

    def stop(self, why: str) -> StepFailure | None:
        """Stop its step, and tell its end if it was begun and has none; this is then its failure."""
        assert self.task is not None
        self.task.cancel()
        if not self.is_started or self.has_ended:
            return None
        outcome = failed(self.call.spec, FailureCode.CANCELLED, why)
        self.life.end(outcome)
        return outcome.failure
