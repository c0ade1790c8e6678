"""Whether an attached run's caller is there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from coordinator.runs.reader import LiveReader
from fanfold.errors import Aborted


class Presence:
    """The one caller of an attached run. While it is away no step is begun, and after `grace` seconds the run ends."""

    def __init__(self, *, grace: float) -> None:
        self.grace = grace
        self._here = asyncio.Event()
        self._changed = asyncio.Event()
        self._reader: LiveReader | None = None

    @contextmanager
    def of(self, reader: LiveReader) -> Iterator[None]:
        """The caller reads with this reader while the block lasts; a former one is told that it was taken over."""
        if self._reader is not None:
            self._reader.end(Aborted("another call with the same request id took the run over", reason="TAKEN_OVER"))
        self._reader = reader
        self._here.set()
        self._changed.set()
        try:
            yield
        finally:
            if self._reader is reader:
                self._reader = None
                self._here.clear()
                self._changed.set()

    def is_here(self) -> bool:
        """Whether it is there."""
        return self._here.is_set()

    async def wait(self) -> None:
        """Wait until it is there."""
        await self._here.wait()

    async def until_given_up(self) -> None:
        """Wait until it has been away for the whole grace."""
        while True:
            self._changed.clear()
            try:
                async with asyncio.timeout(None if self.is_here() else self.grace):
                    await self._changed.wait()
            except TimeoutError:
                return
