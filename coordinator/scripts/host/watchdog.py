"""A script that computes without end is ended (C30)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SLICES = 4


class Watchdog:
    """Calls `bark` if what was delivered has not been worked off within `seconds`; a last word of it ends the watch.

    The time is counted in slices, each of which has to pass in the loop: a pause of this whole process uses up one.
    """

    def __init__(self, seconds: float, bark: Callable[[], None]) -> None:
        self._slice = seconds / SLICES
        self._bark = bark
        self._passed = 0
        self._timer: asyncio.TimerHandle | None = None
        self.is_paused = False
        """While this is set no time passes: the script waits for us."""

    def watch(self) -> None:
        """Something has been delivered; if there is a watch already, that goes on."""
        if self._timer is None:
            self._passed = 0
            self._set()

    def rest(self, *, is_over: bool) -> None:
        """Something has been worked off; everything, if `is_over`."""
        self._passed = 0
        if is_over:
            self.stop()

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._slice, self._look)

    def _look(self) -> None:
        if not self.is_paused:
            self._passed += 1
        if self._passed < SLICES:
            self._set()
        else:
            self._timer = None
            self._bark()
