"""What the steps of a run wait on, so that nothing waits silently (C42)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Waiting:
    """Counts what the steps of one run wait on."""

    def __init__(self) -> None:
        self._reasons: Counter[str] = Counter()

    @contextmanager
    def on(self, reason: str) -> Iterator[None]:
        """One step waits on this while the block lasts."""
        self._reasons[reason] += 1
        try:
            yield
        finally:
            self._reasons[reason] -= 1
            if not self._reasons[reason]:
                del self._reasons[reason]

    def summary(self) -> str:
        """What most of the waiting steps wait on, in words; empty when none waits."""
        if not self._reasons:
            return ""
        reason, count = self._reasons.most_common(1)[0]
        return (
            reason if self._reasons.total() == 1 else f"{reason} ({count:,} of {self._reasons.total():,} waiting steps)"
        )
