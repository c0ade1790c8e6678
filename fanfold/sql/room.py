"""A bound on bytes that wait."""

from __future__ import annotations

import asyncio
from collections import deque


class Room:
    """So many bytes for all; who asks first is served first. Whatever is larger fits when there is nothing else."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        """Wait until `size` bytes fit, and take them."""
        if not self._waiting and self._fits(size):
            self._taken += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._serve()  # those behind it
            else:
                self.give(size)
            raise

    def give(self, size: int) -> None:
        """Give `size` bytes back."""
        self._taken -= size
        self._serve()

    def _fits(self, size: int) -> bool:
        return self._taken == 0 or self._taken + size <= self._size

    def _serve(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.cancelled():
                if not self._fits(size):
                    return
                self._taken += size
                turn.set_result(None)
            self._waiting.popleft()
