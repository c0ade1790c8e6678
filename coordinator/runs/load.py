"""How much a pipeline holds in memory: the steps that were answered and have not ended (C39)."""

from __future__ import annotations

import asyncio

from fanfold.model.pipeline import StageFailure

FREE_SHARE = 8
"""Further stages are asked while less than this part of the limit is held."""


class Load:
    """Sizes of one step of each item, at most `most` bytes in all (limits.run_bytes)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._sizes: dict[int, int] = {}
        self._total = 0
        self._is_light = asyncio.Event()
        self._is_light.set()

    async def room(self) -> None:
        """Wait until there is room for more."""
        await self._is_light.wait()

    def put(self, item: int, size: int) -> None:
        """The item's step is held. Raises StageFailure if that would be too much."""
        if self._sizes and self._total + size > self._most:
            limit = f"must be at most {self._most:,} bytes together with the steps under way (limits.run_bytes)"
            raise StageFailure(f"step: {limit}")
        self._sizes[item] = size
        self._total += size
        self._weigh()

    def drop(self, item: int) -> None:
        """The item's step has ended, or is not run."""
        self._total -= self._sizes.pop(item, 0)
        self._weigh()

    def _weigh(self) -> None:
        if self._total * FREE_SHARE <= self._most:
            self._is_light.set()
        else:
            self._is_light.clear()
