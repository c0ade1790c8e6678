"""Executions that coordinators hold, and those among them whose ending was not acknowledged."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fanfold.model.step import StepEnded, StepEvent, StepStarted
from fanfold.ports import ExecutionStart, Rejection

if TYPE_CHECKING:
    from executor_node.holder import Holder

_CHARACTERS_OF_AN_ENDING = 500
"""What an ending without output counts for, so that there is a bound to their number."""


class Held:
    """An execution from its start until its ending is acknowledged. Its holder may change meanwhile."""

    __slots__ = (
        "ending",
        "execution_id",
        "has_expired",
        "holder",
        "progress",
        "progress_credit",
        "run_id",
        "started",
        "stop_timer",
    )

    def __init__(self, holder: Holder, start: ExecutionStart) -> None:
        self.holder = holder
        self.execution_id = start.execution_id
        self.run_id = start.run_id
        self.progress = start.progress
        self.progress_credit: int | None = None
        """How much of its progress may be told; None is no bound."""
        self.started: StepStarted | None = None
        self.ending: StepEnded | Rejection | None = None
        self.has_expired = False
        """Whether it is being stopped because its holder's lease has ended."""
        self.stop_timer: asyncio.TimerHandle | None = None
        """For one that is to be stopped unless it is adopted before."""

    @property
    def was_rejected(self) -> bool:
        """Whether it was never run here, or was handed back."""
        return isinstance(self.ending, Rejection)

    def tell(self, event: StepEvent) -> None:
        """Tell an event to whoever holds it now."""
        self.holder.tell(self, event)

    def may_tell_progress(self) -> bool:
        """Whether one more progress event is wanted, and there is credit for it, which is then used."""
        if not self.progress or self.progress_credit == 0:
            return False
        if self.progress_credit is not None:
            self.progress_credit -= 1
        return True

    def go_on(self) -> None:
        """It is not to be stopped any more."""
        if self.stop_timer is not None:
            self.stop_timer.cancel()
            self.stop_timer = None


class Endings:
    """Executions whose ending was not acknowledged, in the order in which they ended."""

    def __init__(self) -> None:
        self.characters = 0
        """About what they hold in memory."""
        self._held: OrderedDict[str, Held] = OrderedDict()

    def __contains__(self, execution_id: str) -> bool:
        return execution_id in self._held

    def __iter__(self) -> Iterator[Held]:
        return iter(self._held.values())

    def __len__(self) -> int:
        return len(self._held)

    def get(self, execution_id: str) -> Held | None:
        """An execution that has ended."""
        return self._held.get(execution_id)

    def add(self, held: Held) -> None:
        """Keep one that has ended."""
        self._held[held.execution_id] = held
        self.characters += _characters(held)

    def remove(self, execution_id: str) -> None:
        """Keep one no longer, if it is kept."""
        held = self._held.pop(execution_id, None)
        if held is not None:
            self.characters -= _characters(held)

    def drop_oldest(self, characters: int) -> None:
        """Keep no more than so much, but at least the latest."""
        while self.characters > characters and len(self._held) > 1:
            self.remove(next(iter(self._held)))


def _characters(held: Held) -> int:
    output = len(held.ending.outcome.output) if isinstance(held.ending, StepEnded) else 0
    return _CHARACTERS_OF_AN_ENDING + output
