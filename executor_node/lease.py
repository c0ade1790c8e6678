"""The time that executions live without a word of their coordinator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Lease:
    """Calls `on_end` when it was not renewed for its time. The clock also counts while the machine is suspended."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self.seconds = 0.0
        """How long it lasts without a renewal; with 0 there is none."""
        self._on_end = on_end
        self._renewed_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, seconds: float) -> None:
        """Begin anew, with so many seconds from now on; 0 ends it without a word."""
        self.seconds = seconds
        self.renew()
        self.stop()
        if seconds:
            self._watch()

    def renew(self) -> None:
        """The coordinator was heard."""
        self._renewed_at = _boottime()

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self) -> None:
        left = self._renewed_at + self.seconds - _boottime()
        if left > 0:
            self._timer = asyncio.get_running_loop().call_later(left, self._watch)
        else:
            self._on_end()


def _boottime() -> float:
    """Seconds on a clock that also counts while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
