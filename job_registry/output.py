"""Takes the output and progress of live jobs, and writes what is new of it to the store, together and seldom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from fanfold.errors import Unavailable
from job_registry.bell import Bell
from job_registry.config import OutputSettings
from job_registry.live import LiveJob
from job_registry.store.store import JobStore


class LiveOutput:
    """What live jobs have written. `changed` rings when progress lines are durable, so that watchers are told them.

    The counts are in bytes: `received` and `dropped` since the registry started, `held` at the moment.
    """

    def __init__(self, store: JobStore, settings: OutputSettings, changed: Bell) -> None:
        self.received = 0
        self.dropped = 0
        self.held = 0
        self._store = store
        self._settings = settings
        self._changed = changed
        self._dirty: set[LiveJob] = set()

    def enter(self, live: LiveJob) -> None:
        """A job has come, maybe with output of a former life."""
        self.held += live.held

    def leave(self, live: LiveJob) -> None:
        """A job is settled, and its last output kept."""
        self.held -= live.held
        self._dirty.discard(live)

    def tell_progress(self, live: LiveJob, line: str) -> None:
        """Replace the line that says how far a job is."""
        live.progress = line
        self._dirty.add(live)

    def write(self, live: LiveJob, source: str, offset: int, data: bytes) -> None:
        """Add to a job's output. Raises KeyError for a source that it has not."""
        ring, settings = live.rings[source], self._settings
        before = ring.held
        ring.limit = settings.live_bytes if self.held < settings.total_bytes else settings.settled_bytes
        self.dropped += live.write(source, offset, data, datetime.now(UTC))
        self.held += ring.held - before
        self.received += len(data)
        self._dirty.add(live)

    def write_anew(self, lives: Iterable[LiveJob]) -> None:
        """Write all output of these jobs the next time, as after a write that failed."""
        for live in lives:
            live.write_anew()
            self._dirty.add(live)

    async def keep(self) -> None:
        """Write new output and progress of all jobs to the store. What cannot be written now is written later."""
        dirty = [live for live in self._dirty if not live.lock.locked()]
        self._dirty.difference_update(dirty)
        writes = [write for live in dirty for write in live.unwritten()]
        progress = {live.number: live.progress for live in dirty if live.progress != live.kept.progress}
        if not writes and not progress:
            return
        try:
            await self._store.write_output(writes, progress)
        except Unavailable:  # the store's log says why
            self.write_anew(live for live in dirty if not live.ended.is_set())
            return
        for live in dirty:
            if live.number in progress and not live.ended.is_set():
                live.kept = replace(live.kept, progress=progress[live.number])
        if progress:
            self._changed.ring()
