"""What the log is told of work that fails again and again, as all does while a database is away."""

from __future__ import annotations

import threading
import time
from typing import Any

import structlog

AGAIN_SECONDS = 5.0
"""For so long a cause that has been told is not told again."""

MOST_CAUSES = 32
"""More are forgotten, and each is then told anew."""

_log = structlog.get_logger(__name__)


class Complaints:
    """Tells that some `work` fails, each cause at once and then now and then, and once when it succeeds again.

    Any thread may use it.
    """

    def __init__(self, work: str, again_seconds: float = AGAIN_SECONDS) -> None:
        self._work = work
        self._again_seconds = again_seconds
        self._told_at: dict[str, float] = {}
        self._failures = 0
        self._is_told = False
        self._lock = threading.Lock()

    def failed(self, why: str, **more: Any) -> None:
        """It failed. `more` is told beside the cause, and `failures`: how often it has since it last succeeded."""
        now = time.monotonic()
        with self._lock:
            self._failures += 1
            told_at = self._told_at.get(why)
            if told_at is not None and now - told_at < self._again_seconds:
                return
            if len(self._told_at) >= MOST_CAUSES:
                self._told_at.clear()
            self._told_at[why] = now
            self._is_told = True
            failures = self._failures
        _log.error(f"{self._work} failed", why=why, failures=failures, **more)

    def succeeded(self) -> None:
        """It did not fail."""
        if not self._failures:  # as nearly always, and then without a lock
            return
        with self._lock:
            was_told, failures = self._is_told, self._failures
            self._is_told, self._failures = False, 0
        if was_told:
            _log.info(f"{self._work} succeeds again", failures=failures)
