"""Whose turn it is in a folder that other nodes use as well."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

_RETRY_SECONDS = 0.01


@asynccontextmanager
async def turn_in(folder: Path, patience: float) -> AsyncIterator[None]:
    """Have a folder alone among all that take turns in it, in whichever process; it goes back also if that is killed.

    After `patience` seconds nobody waits any more, for an agent may have locked it; nor where a folder cannot be
    locked, as on some file systems of networks.
    """
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while not _is_taken(opened):  # noqa: ASYNC110 - it is locked by processes, which set no event
                    await asyncio.sleep(_RETRY_SECONDS)
        yield
    finally:
        os.close(opened)


def _is_taken(opened: int) -> bool:
    with suppress(OSError):
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
