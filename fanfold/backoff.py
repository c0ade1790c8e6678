"""How long to wait before trying again, and when to give up."""

from __future__ import annotations

import random
import time

_MOST_DOUBLINGS = 16


def full_jitter(failures: int, *, first: float, most: float) -> float:
    """Seconds to wait after so many failures in a row, counted from 1.

    Random between 0 and a ceiling that doubles from `first` up to `most`: whoever lost the same peer at the same
    moment does not return to it in step (F9).
    """
    ceiling = min(most, first * 2 ** min(failures - 1, _MOST_DOUBLINGS))
    return random.uniform(0, ceiling)  # noqa: S311 - jitter, not a secret


class Absence:
    """For how long a peer has not answered, which is tried again for so many seconds from when it was lost."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None
        self.failures = 0
        """Tries in a row that have failed."""

    def end(self) -> None:
        """It has answered."""
        self._since = None
        self.failures = 0

    def seconds_left(self, error: Exception) -> float:
        """How long it may still be away after one more failure; raises `error` if it has been away for too long."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        left = self._since + self._seconds - now
        if left <= 0:
            raise error
        self.failures += 1
        return left
