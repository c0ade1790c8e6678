"""Who hears what happens in a script's run."""

from __future__ import annotations

from typing import Protocol

from coordinator.scripts.host.calls import Call
from fanfold.model.script import ScriptResult
from fanfold.model.step import StepEvent


class Told(Protocol):
    """Hears what happens in a script's run. Nothing but `room` waits."""

    def made(self, calls: int) -> None:
        """The script has made so many calls."""
        ...

    def step(self, call: Call, event: StepEvent) -> None:
        """Something happened to the step of a call."""
        ...

    def phase(self, title: str) -> None:
        """The script entered a phase."""
        ...

    def log(self, message: str) -> None:
        """The script wrote a line, or lost an item."""
        ...

    def settled(self, result: ScriptResult) -> None:
        """What came of it. What it began may still be ending; nothing more is told of that."""
        ...

    async def room(self) -> None:
        """Wait until whoever hears it all keeps up."""
        ...

    async def until_told(self) -> None:
        """Wait until what was told so far cannot be lost any more."""
        ...
