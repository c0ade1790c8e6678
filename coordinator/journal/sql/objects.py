"""The large parts of segments, in the object store."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from coordinator.journal.journal import JournalFailed
from coordinator.journal.payloads import ObjectStore, Reference
from coordinator.journal.sql.segments import Segment
from fanfold.sql.complaints import Complaints

THREADS = 4
"""Calls to the object store at the same time, beside those of readers."""

_Result = TypeVar("_Result")


class Objects:
    """The objects of one journal, which tells them from those of others by the first part of their names.

    An async context manager; leaving it waits for what is under way.
    """

    def __init__(self, store: ObjectStore, journal_id: str) -> None:
        self._store = store
        self._journal_id = journal_id
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="journal-objects")
        self._keeping = Complaints("keeping an object")
        self._fetching = Complaints("fetching an object")
        self._clearing = Complaints("clearing objects away")
        self._is_open = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        await asyncio.to_thread(self._threads.shutdown)

    async def keep(self, segments: Iterable[Segment]) -> None:
        """Keep the large parts of segments, durably, and note in these where. Raises JournalFailed."""
        for segment in segments:
            if segment.payload:
                name = uuid.uuid4().hex
                segment.object = f"{self._journal_id}/{name[:2]}/{name}"
                await self._call(partial(self._store.put, segment.object, segment.payload), self._keeping)

    def fetch(self, name: str, reference: Reference) -> bytes:
        """A large part; blocks. Raises JournalFailed, and PayloadLost for what is not there or not as it was."""
        with _failing(self._fetching):
            return reference.fetch(self._store, name)

    async def discard(self, names: Collection[str]) -> None:
        """Delete objects that nothing refers to. What cannot be deleted now is left to a sweep."""
        if names:
            with suppress(JournalFailed):
                await self._call(partial(self._store.delete, names), self._clearing)

    async def older_than(self, age: float) -> set[str]:
        """The names of all objects that are older than `age` seconds. Raises JournalFailed."""
        return await self._call(
            lambda: {name for name, its_age in self._store.list(self._journal_id) if its_age > age}, self._clearing
        )

    async def _call(self, work: Callable[[], _Result], complaints: Complaints) -> _Result:
        if not self._is_open:
            raise JournalFailed("the journal is closed")
        with _failing(complaints):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)


@contextmanager
def _failing(complaints: Complaints) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        complaints.failed(f"{type(error).__name__}: {error.strerror}")
        raise JournalFailed from None
    complaints.succeeded()
