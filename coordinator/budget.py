"""The token budget of a run: what an attempt may spend is set aside for it before it begins (C13, F10).

What is spent and what is set aside never come to more than the limit together, unless an agent spends more than it may.
Attempts that do not fit wait in one line, and whoever came first goes first: one that needs much is not overtaken by
those that need little, or it might wait for ever. What no attempt that runs can return is not waited for, so nobody
waits while nothing runs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Self

from coordinator.waiting import Waiting, WaitsOn
from fanfold.model.checks import MAX_TOKENS
from fanfold.model.run import Budget
from fanfold.model.step import NO_USAGE, AgentStepSpec, FailureCode, StepFailure, StepOutcome

SHARES = 16
"""Into how many parts a budget is divided when nobody can say how many steps there will be."""

WAITS_ON = "tokens of the budget, which running steps hold"

_COST_UNKNOWN = frozenset({FailureCode.NODE_LOST, FailureCode.INTERNAL})


class Reservation:
    """Tokens that are set aside for one attempt while a block lasts: `with reservation: ...`.

    At the end of the block `cost` is charged, and what was set aside returns.
    """

    __slots__ = ("_budget", "cost", "tokens")

    def __init__(self, budget: TokenBudget | None = None, tokens: int = 0) -> None:
        self._budget = budget
        self.tokens = tokens
        """Most that the attempt may spend; 0 also for an attempt that spends nothing, and without a budget."""
        self.cost = 0
        """What the attempt has cost, as far as that is known."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Charge it now. Idempotent."""
        if self._budget is not None:
            budget, self._budget = self._budget, None
            budget.settle(self)

    def cap(self, spec: AgentStepSpec) -> AgentStepSpec:
        """The step as it is dispatched: with what was set aside as its cap, which the node keeps."""
        if not self.tokens or spec.policy.max_tokens == self.tokens:
            return spec
        return replace(spec, policy=replace(spec.policy, max_tokens=self.tokens))

    def ended(self, outcome: StepOutcome | None) -> None:
        """The attempt ended so, or was lost. What it cost is what it told; if it told nothing, all of it."""
        self.cost = self.tokens if outcome is None or _is_cost_unknown(outcome) else outcome.usage.tokens


class TokenBudget:
    """What a run may spend, and what has become of it.

    Args:
        limit: tokens that the run may spend; 0 refuses every step that would spend.
        steps: how many steps the run has, or can have, if that is known (`divide`).
        spent: tokens that were spent before, when the run is taken over.
        refused_steps: steps that were refused before.
        is_exhausted: whether it was told before that a step was refused.
    """

    def __init__(
        self,
        limit: int,
        *,
        steps: int = SHARES,
        spent: int = 0,
        refused_steps: int = 0,
        is_exhausted: bool = False,
    ) -> None:
        self.limit = limit
        self.spent = spent
        self.refused_steps = refused_steps
        self.is_exhausted = is_exhausted
        self.on_exhausted: list[Callable[[], None]] = []
        """Each is called once, when the first step has been refused; must not block and must not raise."""
        self.on_spent: Callable[[], None] = _tell_nobody
        """Called when something was charged; must not block and must not raise."""
        self._share = 0
        self.divide(steps)
        self._set_aside = 0
        self._inherited: dict[str, int] = {}
        self._line: deque[tuple[asyncio.Future[Reservation | None], int]] = deque()

    def divide(self, steps: int) -> None:
        """Have a step that names no `max_tokens` get the limit divided by so many steps; it is at least 1."""
        self._share = max(1, self.limit // max(1, steps))

    def told(self) -> Budget:
        """The budget as it now stands."""
        return Budget(limit=self.limit, spent=self.spent, refused_steps=self.refused_steps)

    @property
    def reserved(self) -> int:
        """Tokens that are set aside for attempts that run."""
        return self._set_aside

    def needs(self, spec: AgentStepSpec, *, uses_model: bool) -> int:
        """How much an attempt of the step has set aside."""
        if not uses_model:
            return 0
        most = spec.policy.max_tokens
        return self._share if most is None else most

    def adopt(self, tokens: int) -> Reservation:
        """Set tokens aside for an attempt that runs already, whether they are there or not."""
        self._set_aside += tokens
        return Reservation(self, tokens)

    def inherit(self, name: str, tokens: int) -> None:
        """Set aside what a former holder of the run has set aside for a step that runs already, by its key."""
        self._set_aside += tokens
        self._inherited[name] = tokens

    def inherited(self, name: str, tokens: int) -> Reservation:
        """What a former holder has set aside for a step; so many tokens if that is not known."""
        known = self._inherited.pop(name, None)
        return self.adopt(tokens) if known is None else Reservation(self, known)

    def charge(self, tokens: int) -> None:
        """Charge what an attempt is known to have cost for which nothing is set aside."""
        if tokens:
            self.spent = min(MAX_TOKENS, self.spent + tokens)
            self.on_spent()

    def lose(self, tokens: int) -> None:
        """Charge what a former holder has set aside for an attempt of which nothing will be heard.

        All that it had set aside was within the limit. So is this, unless the attempt has been charged before.
        """
        self.charge(max(0, min(tokens, self.limit - self.spent - self._set_aside)))

    def forfeit(self) -> None:
        """Charge all that is set aside."""
        self.charge(self._set_aside)

    async def reserve(self, spec: AgentStepSpec, waiting: Waiting, *, uses_model: bool) -> Reservation | StepFailure:
        """Set aside what an attempt of the step needs, once it is there; or why it will not be (BUDGET_EXHAUSTED)."""
        tokens = self.needs(spec, uses_model=uses_model)
        if not uses_model or (not self._line and self._is_there(tokens)):
            return self.adopt(tokens)
        reservation = await self._wait(tokens, waiting) if self._may_return(tokens) else None
        return reservation or self._refuse(tokens)

    def settle(self, reservation: Reservation) -> None:
        """Charge what an attempt cost, and have back what was set aside for it."""
        self._set_aside -= reservation.tokens
        self.charge(reservation.cost)
        self._serve()

    def _is_there(self, tokens: int) -> bool:
        return self.spent + self._set_aside + tokens <= self.limit

    def _may_return(self, tokens: int) -> bool:
        """Whether so much will be there if the attempts that run cost nothing."""
        return self.spent + tokens <= self.limit

    async def _wait(self, tokens: int, waiting: Waiting) -> Reservation | None:
        place: asyncio.Future[Reservation | None] = asyncio.get_running_loop().create_future()
        self._line.append((place, tokens))
        try:
            with waiting.on(WaitsOn.TOKENS, WAITS_ON):
                return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and (reservation := place.result()) is not None:
                with reservation:
                    raise
            self._serve()
            raise

    def _serve(self) -> None:
        """Answer those that wait, in turn, up to the first whose tokens may still return."""
        while self._line:
            place, tokens = self._line[0]
            if not place.done():
                if self._is_there(tokens):
                    place.set_result(self.adopt(tokens))
                elif self._may_return(tokens):
                    return
                else:
                    place.set_result(None)
            self._line.popleft()

    def _refuse(self, tokens: int) -> StepFailure:
        self.refused_steps += 1
        left = max(0, self.limit - self.spent)
        message = f"it may spend {tokens:,} tokens, and {left:,} of the budget of {self.limit:,} are left"
        if not self.is_exhausted:
            self.is_exhausted = True
            for tell in self.on_exhausted:
                tell()
        return StepFailure(code=FailureCode.BUDGET_EXHAUSTED, message=message)


def _is_cost_unknown(outcome: StepOutcome) -> bool:
    return outcome.failure is not None and outcome.failure.code in _COST_UNKNOWN and outcome.usage == NO_USAGE


def _tell_nobody() -> None:
    pass
