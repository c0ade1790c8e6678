"""The journal in a database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

import structlog
from sqlalchemy import ColumnElement

from coordinator.journal.journal import (
    ANY,
    Append,
    Claim,
    Entry,
    Held,
    Holder,
    KeptRun,
    Listener,
    Namesake,
    NewRun,
    PayloadGone,
    Record,
    Retention,
    RunFilter,
)
from coordinator.journal.payloads import ObjectStore, PayloadLost
from coordinator.journal.sql import reads, writes
from coordinator.journal.sql.notices import heard_by
from coordinator.journal.sql.objects import Objects
from coordinator.journal.sql.segments import Segment, event_segments, record_segments, request_segment
from coordinator.journal.sql.sweep import sweep
from coordinator.journal.sql.tables import has_request_id, has_workflow, runs
from fanfold.errors import Aborted, InternalError
from fanfold.sql.access import Access
from fanfold.sql.database import Database
from fanfold.sql.writer import QUEUE_BYTES, Operation

INLINE_BYTES = 65_536
"""Payloads above this go to the object store."""

_Result = TypeVar("_Result")

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def sql_journal(
    database: Database, store: ObjectStore, *, inline_bytes: int = INLINE_BYTES, queue_bytes: int = QUEUE_BYTES
) -> AsyncIterator[SqlJournal]:
    """The journal in a database whose schema is up to date, with payloads above `inline_bytes` in `store`.

    Leaving it waits for what is under way, and closes the database. Raises JournalFailed.
    """
    async with Access(database, queue_bytes) as access:
        journal_id = await access.read(reads.journal_id)
        async with Objects(store, journal_id) as objects:
            yield SqlJournal(access, objects, inline_bytes)


class SqlJournal:
    """A Journal in a database; see there for what the methods promise."""

    def __init__(self, access: Access, objects: Objects, inline_bytes: int) -> None:
        self._access = access
        self._objects = objects
        self._inline_bytes = inline_bytes
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def accept(self, new: NewRun, holder: Holder, lease: float) -> KeptRun:
        """Keep a new run, or give the one that is kept for it."""
        request = request_segment(new.request, self._inline_bytes)
        operation = partial(writes.accept, new=new, request=request, holder=holder, lease=lease)
        kept = await self._write(new.run.run_id, operation, [request])
        if kept.run.run_id != new.run.run_id:
            await self._discard([request])
        return kept

    async def append(self, append: Append) -> None:
        """Write to a run."""
        events = list(event_segments(append.entries, self._inline_bytes))
        records = [] if append.forget_records else list(record_segments(append.records, self._inline_bytes))
        operation = partial(writes.append, written=append, events=events, records=records)
        freed = await self._write(append.run_id, operation, [*events, *records])
        await self._objects.discard(freed)

    async def use_node(self, run_id: str, epoch: int, node: str) -> None:
        """Note a node of a run."""
        await self._write(run_id, partial(writes.use_node, run_id=run_id, epoch=epoch, node=node))

    async def set_job(self, run_id: str, epoch: int, job_id: str) -> None:
        """Note a run's job."""
        await self._write(run_id, partial(writes.set_job, run_id=run_id, epoch=epoch, job_id=job_id))

    async def take_name(self, holder: Holder, lease: float) -> Namesake | None:
        """Have a name."""
        return await self._access.write(partial(writes.take_name, holder=holder, lease=lease), urgent=True)

    async def drop_name(self, holder: Holder) -> None:
        """Leave a name to others."""
        await self._access.write(partial(writes.drop_name, holder=holder))

    async def renew(self, holder: Holder, lease: float) -> Sequence[Held]:
        """Renew the leases of a holder."""
        return await self._access.write(partial(writes.renew, holder=holder, lease=lease), urgent=True)

    async def claim(self, holder: Holder, lease: float, limit: int = 100, wanted: Claim = ANY) -> Sequence[KeptRun]:
        """Take over runs that nobody holds."""
        return await self._access.write(partial(writes.claim, holder=holder, lease=lease, limit=limit, wanted=wanted))

    @property
    def tells(self) -> bool:
        """Whether its database tells."""
        return self._access.hears

    async def listen(self, listener: Listener) -> None:
        """Hear what others do."""
        await self._access.hear(heard_by(listener))

    async def until_end_of_leases(self) -> float:
        """Seconds until a lease is over."""
        return await self._access.read(reads.until_end_of_leases)

    async def let_go(self, run_id: str, epoch: int) -> None:
        """Give a run up."""
        await self._write(run_id, partial(writes.let_go, run_id=run_id, epoch=epoch))

    async def ask_to_cancel(self, run_id: str, reason: str) -> None:
        """Note that a run is to be cancelled."""
        await self._write(run_id, partial(writes.ask_to_cancel, run_id=run_id, reason=reason))

    async def find(self, run_id: str) -> KeptRun | None:
        """A run by its id."""
        return await self._find(runs.c.run_id == run_id)

    async def find_workflow(self, owner: str, workflow_id: str) -> KeptRun | None:
        """The latest run of a workflow."""
        return await self._find(runs.c.owner == owner, runs.c.workflow_id == workflow_id, has_workflow)

    async def find_request(self, owner: str, request_id: str) -> KeptRun | None:
        """The run of a request."""
        return await self._find(runs.c.owner == owner, runs.c.request_id == request_id, has_request_id)

    async def list_runs(self, wanted: RunFilter) -> Sequence[KeptRun]:
        """Runs by filter."""
        return await self._access.read(partial(reads.list_runs, wanted=wanted))

    async def request(self, run_id: str) -> bytes:
        """What a run was asked for."""
        return await self._read_whole(f"run {run_id}", partial(reads.request, run_id=run_id, fetch=self._objects.fetch))

    async def entries(self, run_id: str, first: int, max_bytes: int = 1_048_576) -> Sequence[Entry]:
        """Events of a run."""
        operation = partial(reads.entries, run_id=run_id, first=first, max_bytes=max_bytes, fetch=self._objects.fetch)
        return await self._read_whole(f"run {run_id}", operation)

    async def records(self, owner: str, workflow_id: str) -> Sequence[Record]:
        """Records of a workflow."""
        operation = partial(reads.records, owner=owner, workflow_id=workflow_id, fetch=self._objects.fetch)
        return await self._read_whole(f"workflow {workflow_id!r}", operation)

    async def put_records(self, owner: str, workflow_id: str, records: Sequence[Record]) -> None:
        """Replace the records of a workflow."""
        segments = list(record_segments(records, self._inline_bytes))
        operation = partial(writes.put_records, owner=owner, workflow_id=workflow_id, records=segments)
        await self._objects.discard(await self._write(f"{owner}\n{workflow_id}", operation, segments))

    async def sweep(self, retention: Retention) -> int:
        """Delete what is beyond the retention."""
        return await sweep(self._access, self._objects, retention)

    async def _write(self, subject: str, operation: Operation[_Result], segments: Sequence[Segment] = ()) -> _Result:
        """Carry out an operation that writes these segments, after all that was asked for before of the subject."""
        async with self._turns.setdefault(subject, asyncio.Lock()):
            await self._objects.keep(segments)
            done = await self._access.submit(operation, sum(len(segment.data) for segment in segments))
        try:
            return await done
        except (Aborted, InternalError):  # nothing was written
            await self._discard(segments)
            raise

    async def _discard(self, segments: Sequence[Segment]) -> None:
        await self._objects.discard([segment.object for segment in segments if segment.object])

    async def _find(self, *conditions: ColumnElement[bool]) -> KeptRun | None:
        return await self._access.read(partial(reads.latest_run, conditions=conditions))

    async def _read_whole(self, subject: str, operation: Operation[_Result]) -> _Result:
        """Carry out an operation that reads large payloads."""
        try:
            return await self._access.read(operation)
        except PayloadLost:
            pass  # perhaps a sweep came between the row and its object: then the row is gone as well
        try:
            return await self._access.read(operation)
        except PayloadLost as lost:
            _log.error("payload lost", subject=subject, why=str(lost))
            raise PayloadGone(f"a payload of {subject} is lost; the coordinator's log says which") from None
