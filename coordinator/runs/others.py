"""Runs that are left to other coordinators for now, as they cannot be gone on with here."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import structlog

_log = structlog.get_logger(__name__)

MAX_OTHERS = 1_000
"""Runs that are remembered to be others'; one that is forgotten is claimed and let go once more."""


class Others:
    """Remembers runs that are not to be claimed here, by when they may be again."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        """On the monotonic clock, the longest known first."""

    def leave(self, run_id: str, why: str, seconds: float = math.inf) -> None:
        """Leave a run to others for so many seconds."""
        _log.warning("run left to others", run_id=run_id, why=why)
        self._until[run_id] = time.monotonic() + seconds
        while len(self._until) > MAX_OTHERS:
            del self._until[next(iter(self._until))]

    def __contains__(self, run_id: object) -> bool:
        return run_id in self._until

    def at(self, now: float) -> set[str]:
        """The runs that are others' at this monotonic time."""
        return {run_id for run_id, until in self._until.items() if now < until}

    def ends(self) -> Iterator[float]:
        """The monotonic times at which they are left to others no longer."""
        return iter(self._until.values())
