"""When a coordinator looks into the journal for what others have left to it: when it hears of it, or when it is due."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from coordinator.journal.journal import Journal, JournalFailed

GATHER_SECONDS = 0.05
"""What is heard of within this is looked for together."""


class Looking:
    """Hears what other coordinators do, as the journal's Listener.

    `claim` is the least pause between looks that are due, `lease` the longest, in seconds: no lease that begins after a
    look is over before the next one.
    """

    def __init__(self, journal: Journal, *, claim: float, lease: float) -> None:
        self._journal = journal
        self._claim = claim
        self._lease = lease
        self._let_go = asyncio.Event()
        self._cancel = asyncio.Event()

    def on_let_go(self) -> None:
        """Runs were let go, or are not held here any more."""
        self._let_go.set()

    def on_cancel(self) -> None:
        """Runs are to be cancelled."""
        self._cancel.set()

    async def until_claim(self, dues: Iterable[float]) -> None:
        """Wait until there may be a run that nobody holds; `dues` are further moments to look, in seconds from now."""
        pause = self._claim
        if self._journal.tells:
            with suppress(JournalFailed):
                ends = await self._journal.until_end_of_leases()
                pause = max(pause, min([ends, self._lease, *(due for due in dues if due > 0)]))
        await _heard_within(self._let_go, pause)

    async def until_renewal(self, seconds: float) -> None:
        """Wait for so many seconds, or until a run is to be cancelled that may be held here: renewals tell of that."""
        await _heard_within(self._cancel, seconds)


async def _heard_within(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
            await asyncio.sleep(GATHER_SECONDS)
    event.clear()
