"""The protocols between the domain and whatever serves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fanfold.model.step import AgentStepSpec, StepEvent, StepOutcome

OnStepEvent = Callable[[StepEvent], None]
"""Takes one event; must not block and must not raise."""


class AgentExecutor(Protocol):
    """Runs steps, somewhere (C8). Combinators are written against this and cannot see where a step ran."""

    async def execute_step(self, spec: AgentStepSpec, on_event: OnStepEvent | None = None) -> StepOutcome:
        """Run one step to its end and tell its life to `on_event` in order (C11).

        A step that goes wrong is an outcome with `success` false, never an exception (C9).

        Raises:
            InvalidArgument: the spec is wrong.
            asyncio.CancelledError: this call was cancelled; the step's processes are gone.
        """
        ...

    def concurrency_hint(self) -> int:
        """Steps it would like to have at once (C10): advice, not a ceiling; may move at any time, also to 0."""
        ...
