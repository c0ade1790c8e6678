"""Events on their way to one reader: gathered while it is busy, taken in batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from fanfold.background import background

MAX_WAITING = 10_000
"""Events a reader may be behind before progress is no longer told to it; what is not progress always is."""

MAX_WEIGHT_WAITING = 32 * 2**20
"""Weight of waiting events, in characters or bytes, from which on `room` waits for the reader."""

Event = TypeVar("Event")


class Feed(Generic[Event]):
    """A queue with one reader. `push` never waits; a reader that is slow gets larger batches, not a slower run."""

    def __init__(self) -> None:
        self._waiting: list[Event] = []
        self._weight = 0
        self._light = asyncio.Event()
        self._light.set()
        self._wake = asyncio.Event()
        self._closed = False
        self._error: Exception | None = None
        self._read_before = False
        self._delivered = asyncio.Event()

    def push(self, event: Event, weight: int = 0) -> None:
        """Add an event that must be told; `weight` is what it holds in memory, about."""
        self._waiting.append(event)
        self._weight += weight
        if self._weight > MAX_WEIGHT_WAITING:
            self._light.clear()
        self._wake.set()

    def has_room(self) -> bool:
        """Whether the reader is near enough for progress to be worth telling."""
        return len(self._waiting) < MAX_WAITING

    def is_heavy(self) -> bool:
        """Whether so much waits for the reader that no more should be made."""
        return not self._light.is_set()

    async def room(self) -> None:
        """Wait while it is heavy (F15)."""
        await self._light.wait()

    def close(self, error: Exception | None = None) -> None:
        """Nothing more will come, because of `error` if there is one; the first call counts."""
        if not self._closed:
            self._closed = True
            self._error = error
        self._wake.set()

    @property
    def is_closed(self) -> bool:
        """Whether nothing more will come."""
        return self._closed

    async def first_delivered(self) -> None:
        """Wait until the reader has come back for more, so that what it read first has reached its reader in turn."""
        await self._delivered.wait()

    async def read(self) -> list[Event]:
        """Whatever has gathered, waiting for at least one event; empty at the end.

        Raises:
            Exception: why it was closed; after all that had gathered before.
        """
        if self._read_before:
            self._delivered.set()
        self._read_before = True
        while not self._waiting and not self._closed:
            self._wake.clear()
            await self._wake.wait()
        if not self._waiting and self._error is not None:
            raise self._error
        waiting, self._waiting = self._waiting, []
        self._weight = 0
        self._light.set()
        return waiting


@asynccontextmanager
async def fed(feed: Feed[Event], work: Coroutine[Any, Any, None]) -> AsyncIterator[Feed[Event]]:
    """Run `work`, which feeds the feed, while the block lasts. Leaving early cancels it and waits until it is gone.

    What `work` raises is raised where the feed is read. It does not cancel the block, which may be in the middle of
    handing on what it has read: a gRPC call that is cancelled while it writes can never be answered.
    """

    async def feeding() -> None:
        error: Exception | None = None
        try:
            await work
        except Exception as raised:  # it is raised by `read`
            error = raised
        finally:
            feed.close(error)

    async with background(feeding()):
        yield feed
