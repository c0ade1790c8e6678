"""What a run asks of a journal that may be away for a while (C17, C42)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from coordinator.journal.journal import JournalFailed, PayloadGone
from coordinator.scope import Hold

RETRY_SECONDS = 0.25
"""Pause before what failed is tried again."""

_Result = TypeVar("_Result")


async def outlasting(hold: Hold, ask: Callable[[], Awaitable[_Result]]) -> _Result:
    """What the journal answers, asked again and again while it is away and the run is not given up.

    Raises:
        JournalFailed: the run was given up meanwhile.
        PayloadGone: what is asked for will never be there again.
    """
    while True:
        try:
            return await ask()
        except PayloadGone:
            raise
        except JournalFailed:
            if hold.is_given_up:
                raise
        await asyncio.sleep(RETRY_SECONDS)
