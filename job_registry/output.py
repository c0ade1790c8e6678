"""Takes output and progress of jobs that are held here, and writes what is new to the store, together and seldom."""

from __future__ import annotations

from datetime import UTC, datetime

from fanfold.errors import Unavailable
from job_registry.bell import Bell
from job_registry.config import OutputSettings
from job_registry.held import Held
from job_registry.live import LiveJob
from job_registry.rings import Ring
from job_registry.store.store import JobStore, OutputWrite

WHOLE_SECONDS = 5.0
"""How long a settled job keeps all its output, for those who follow it at other registries and come to its end."""


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

    def enter(self, held: Held) -> None:
        """A job has come, maybe with output from before."""
        self.held += held.size

    def leave(self, live: LiveJob) -> None:
        """A job is held here no longer."""
        held = live.held
        assert held is not None
        self.held -= held.size
        self._dirty.discard(live)

    def tell_progress(self, live: LiveJob, line: str) -> None:
        """Replace the line that says how far a job is that is held here."""
        assert live.held is not None
        live.held.progress = line
        self._dirty.add(live)

    def write(self, live: LiveJob, source: str, offset: int, data: bytes) -> None:
        """Add to the output of a job that is held here. Raises KeyError for a source that it has not."""
        held, settings = live.held, self._settings
        assert held is not None
        ring = held.rings[source]
        before = ring.held
        ring.limit = settings.live_bytes if self.held < settings.total_bytes else settings.settled_bytes
        self.dropped += ring.write(offset, data, datetime.now(UTC))
        self.held += ring.held - before
        self.received += len(data)
        self._dirty.add(live)
        live.moved.ring()

    def write_again(self, live: LiveJob) -> None:
        """Write the output of a job the next time, as after a write that failed."""
        if live.held is not None and not live.ended.is_set():
            self._dirty.add(live)

    async def keep(self) -> None:
        """Write new output and progress of all jobs to the store. What cannot be written now is written later."""
        dirty = [live for live in self._dirty if not live.lock.locked()]
        self._dirty.difference_update(dirty)
        helds = {live.number: live.held for live in dirty if live.held is not None}
        writes = [write for held in helds.values() for write in held.unwritten()]
        progress = {number: held.progress for number, held in helds.items() if held.progress != held.kept_progress}
        if not writes and not progress:
            return
        try:
            await self._store.write_output(writes, progress, {number: held.hold for number, held in helds.items()})
        except BaseException as error:
            for live in dirty:
                self.write_again(live)
            if isinstance(error, Unavailable):  # the store's log says why
                return
            raise
        for write in writes:
            helds[write.number].written(write)
        for number, line in progress.items():
            helds[number].kept_progress = line
        if progress:
            self._changed.ring()

    async def cut(self) -> None:
        """Keep only the end of the output of jobs that have settled a while ago, wherever. Raises StoreFailed."""
        while numbers := await self._store.uncut(WHOLE_SECONDS):
            await self._store.cut_output({number: await self._ends_of(number) for number in numbers})

    async def _ends_of(self, number: int) -> list[OutputWrite]:
        ends = []
        for kept in await self._store.output(number):
            end = Ring(kept.source, self._settings.settled_bytes, kept.pieces)
            if end.source != kept.source:
                ends.append(OutputWrite(number=number, source=end.source, pieces=end.since(0), afresh=True))
        return ends
