"""The last changes of all jobs, read from the store once for all who watch."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import takewhile
from typing import Protocol

from fanfold.errors import Unavailable
from job_registry.bell import Bell
from job_registry.store.store import Changes, ChangesGone, JobQuery, JobStore, KeptJob, matches

GATHER_SECONDS = 0.05
"""What changes within this is read together."""

RETRY_SECONDS = 1.0

_READ_AT_ONCE = 500
_BYTES_OF_JOB = 1_000
_BYTES_OF_SOURCE = 200
_EVERYTHING = JobQuery(limit=_READ_AT_ONCE)


class Follower(Protocol):
    """Takes all changes in, one after the other."""

    async def begin(self, position: int) -> None:
        """All from that position on will follow; raises StoreFailed. Again where some of them were missed."""
        ...

    def see_changes(self, changes: Changes) -> None:
        """The next ones."""
        ...


class RecentChanges:
    """The last `most` changes, as far as they have at most `most_bytes` together; `follower` sees each of them.

    `follow` is to run as long as somebody watches; `told` rings when there are more.

    Watchers that are further behind read the store themselves, until they have come this far.
    """

    def __init__(
        self,
        store: JobStore,
        changed: Bell,
        most: int = 5_000,
        most_bytes: int = 16 * 1024 * 1024,
        follower: Follower | None = None,
    ) -> None:
        self.told = Bell()
        self._store = store
        self._changed = changed
        self._most = most
        self._most_bytes = most_bytes
        self._follower = follower
        self._recent: deque[KeptJob] = deque()
        self._bytes = 0
        self._begun = self._since = self._position = -1  # nothing was read yet

    async def begin(self) -> None:
        """Follow changes from now on. Raises StoreFailed."""
        position = await self._store.position()
        if self._follower is not None:
            await self._follower.begin(position)
        self._begun = position

    async def follow(self) -> None:
        """Read what changes, for ever."""
        while True:
            try:
                await self._follow()
            except ChangesGone:  # much was forgotten while the store could not be read
                self._recent.clear()
                self._bytes = 0
                self._begun = self._since = self._position = -1
            except Unavailable:  # the store's log says why
                await asyncio.sleep(RETRY_SECONDS)

    async def _follow(self) -> None:
        if self._position < 0:
            if self._begun < 0:
                await self.begin()
            self._since = self._position = self._begun
        while True:
            seen = self._changed.count
            changes = await self._store.changes(_EVERYTHING, self._position)
            if self._follower is not None:
                self._follower.see_changes(changes)
            self._recent.extend(changes.jobs)
            self._bytes += sum(map(_size_of, changes.jobs))
            self._position = changes.position
            while len(self._recent) > self._most or self._bytes > self._most_bytes:
                oldest = self._recent.popleft()
                self._bytes -= _size_of(oldest)
                self._since = oldest.change
            self.told.ring()
            if len(changes.jobs) < _READ_AT_ONCE:
                await self._changed.wait(seen)
                await asyncio.sleep(GATHER_SECONDS)

    async def after(self, query: JobQuery, position: int) -> Changes:
        """Jobs as they were after changes beyond a position, as JobStore.changes has them. Raises ChangesGone."""
        if not 0 <= self._since <= position <= self._position:
            return await self._store.changes(query, position)
        newer = takewhile(lambda job: job.change > position, reversed(self._recent))
        found = [job for job in newer if matches(job, query)]
        found.reverse()
        if len(found) <= query.limit:
            return Changes(jobs=found, position=self._position)
        return Changes(jobs=found[: query.limit], position=found[query.limit - 1].change)


def _size_of(job: KeptJob) -> int:
    """About how many bytes it has; most of the small ones are Python's own."""
    texts = (job.owner, job.label, job.parent, job.holds, job.progress, job.standing.detail, job.standing.stop_reason)
    return _BYTES_OF_JOB + _BYTES_OF_SOURCE * len(job.sources) + sum(map(len, texts))
