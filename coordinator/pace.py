"""How fast a run takes what nodes have for it: as fast as its caller reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from coordinator.waiting import Waiting, WaitsOn

CALLER_BEHIND = "its caller, which has much to read"
"""What a run waits on whose caller does not read as fast as its steps end (C42)."""


class Reader(Protocol):
    """What a caller reads from; a `Feed` is one."""

    def has_room(self) -> bool:
        """Whether the reader is near enough for progress to be worth telling."""
        ...

    async def room(self) -> None:
        """Wait while so much waits for the reader that no more should be made."""
        ...


class Pace:
    """The pace of one run. Without a reader it takes everything at once."""

    def __init__(self) -> None:
        self._reader: Reader | None = None
        self._turn = asyncio.Lock()

    def follow(self, reader: Reader) -> None:
        """Take things as fast as this reader does."""
        self._reader = reader

    def keeps_up(self) -> bool:
        """Whether further progress is worth having."""
        return self._reader is None or self._reader.has_room()

    @asynccontextmanager
    async def turn(self, waiting: Waiting) -> AsyncIterator[None]:
        """Take one large ending while the block lasts: one at a time, and none while the reader has much to read."""
        async with AsyncExitStack() as stack:
            with waiting.on(WaitsOn.CALLER, CALLER_BEHIND):
                await stack.enter_async_context(self._turn)
                if self._reader is not None:
                    await self._reader.room()
            yield
