"""Wakes all who wait for something to happen."""

from __future__ import annotations

import asyncio


class Bell:
    """Counts how often it was rung. Whoever looks remembers the count first, and misses nothing that happens after."""

    __slots__ = ("_waiting", "count")

    def __init__(self) -> None:
        self.count = 0
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Wake all who wait."""
        self.count += 1
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    async def wait(self, seen: int) -> None:
        """Wait until it has been rung more often than that."""
        if self.count > seen:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)
