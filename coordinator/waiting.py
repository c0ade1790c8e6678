"""What the steps of a run wait on, so that nothing waits silently (C42)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

LOOK_SECONDS = 0.5
"""Seconds between two looks at what a run waits on."""


class Waiting:
    """Counts the steps of one run that are under way, and what those that do not move wait on."""

    def __init__(self) -> None:
        self.under_way = 0
        """Steps that are."""
        self._step = _Step(self)
        self._reasons: Counter[str] = Counter()

    def step(self) -> AbstractContextManager[None]:
        """One step is under way while the block lasts."""
        return self._step

    @contextmanager
    def on(self, reason: str) -> Iterator[None]:
        """One of them waits on this while the block lasts."""
        self._reasons[reason] += 1
        try:
            yield
        finally:
            self._reasons[reason] -= 1
            if not self._reasons[reason]:
                del self._reasons[reason]

    def summary(self) -> str:
        """What most of them wait on, in words; empty while any of them moves."""
        waiting = self._reasons.total()
        if not waiting or waiting < self.under_way:
            return ""
        reason, count = self._reasons.most_common(1)[0]
        return reason if count == waiting else f"{reason} ({count:,} of {waiting:,} steps)"


class _Step(AbstractContextManager[None]):
    """Counts whoever is within its block, which any number may be; every step passes here, and generators cost more."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting

    def __enter__(self) -> None:
        self._waiting.under_way += 1

    def __exit__(self, *_error: object) -> None:
        self._waiting.under_way -= 1
