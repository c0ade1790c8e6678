"""What the steps of a run wait on, so that nothing waits silently (C42)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from typing import NamedTuple

LOOK_SECONDS = 0.5
"""Seconds between two looks at what a run waits on."""


class WaitsOn(StrEnum):
    """The kinds of things that runs wait on."""

    PLACE = "place"
    NODE = "node"
    QUOTA = "quota"
    TOKENS = "tokens"
    RETRY = "retry"
    CALLER = "caller"
    JOURNAL = "journal"
    REGISTRY = "registry"


class Standstill(NamedTuple):
    """Nothing of a run moves: what most of its steps wait on, and since when, on the monotonic clock."""

    on: WaitsOn
    since: float


class Waiting:
    """Counts the steps of one run that are under way, and what those that do not move wait on."""

    def __init__(self) -> None:
        self.under_way = 0
        """Steps that are."""
        self.standstill: Standstill | None = None
        """How the run stood when it was last looked at."""
        self._step = _Step(self)
        self._reasons: Counter[tuple[WaitsOn, str]] = Counter()

    def step(self) -> AbstractContextManager[None]:
        """One step is under way while the block lasts."""
        return self._step

    @contextmanager
    def on(self, kind: WaitsOn, words: str) -> Iterator[None]:
        """One of them waits on this while the block lasts."""
        reason = kind, words
        self._reasons[reason] += 1
        try:
            yield
        finally:
            self._reasons[reason] -= 1
            if not self._reasons[reason]:
                del self._reasons[reason]

    def on_journal(self) -> AbstractContextManager[None]:
        """One of them waits on the journal while the block lasts."""
        return self.on(WaitsOn.JOURNAL, "the journal")

    def look(self) -> str:
        """The summary, and note since when nothing moves."""
        if (kind := self._stands_still_on()) is None:
            self.standstill = None
        else:
            since = self.standstill.since if self.standstill else time.monotonic()
            self.standstill = Standstill(kind, since)
        return self.summary()

    def summary(self) -> str:
        """What most of them wait on, in words; empty while any of them moves."""
        if self._stands_still_on() is None:
            return ""
        waiting = self._reasons.total()
        (_, words), count = self._reasons.most_common(1)[0]
        return words if count == waiting else f"{words} ({count:,} of {waiting:,} steps)"

    def _stands_still_on(self) -> WaitsOn | None:
        waiting = self._reasons.total()
        if not waiting or waiting < self.under_way:
            return None
        return self._reasons.most_common(1)[0][0][0]


class _Step(AbstractContextManager[None]):
    """Counts whoever is within its block, which any number may be; every step passes here, and generators cost more."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting

    def __enter__(self) -> None:
        self._waiting.under_way += 1

    def __exit__(self, *_error: object) -> None:
        self._waiting.under_way -= 1
