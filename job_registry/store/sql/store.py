"""The store in a database."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from fanfold.sql.access import Access
from fanfold.sql.database import Database
from job_registry.limits import Room
from job_registry.states import Move
from job_registry.store.sql import reads, writes
from job_registry.store.sql.notices import heard_by
from job_registry.store.store import (
    Changes,
    JobQuery,
    KeptJob,
    KeptOutput,
    Listener,
    Moved,
    NewJob,
    OutputWrite,
    Retention,
)

_CUT_AT_ONCE = 50
_PURGED_AT_ONCE = 200
"""So that nothing else waits long behind it."""


@asynccontextmanager
async def sql_store(database: Database, *, alone: bool) -> AsyncIterator[SqlJobStore]:
    """The store in a database whose schema is up to date; leaving it waits for what is under way, and closes it.

    `alone` says that no other registry is on it.
    """
    async with Access(database) as access:
        yield SqlJobStore(access, await access.read(reads.store_id), alone=alone)


class SqlJobStore:
    """A JobStore in a database; see there for what the methods promise."""

    def __init__(self, access: Access, identity: str, *, alone: bool) -> None:
        self.identity = identity
        self._access = access
        self._alone = alone

    async def take_number(self) -> int:
        """The next number."""
        return await self._access.write(writes.take_number)

    async def add(self, new: NewJob, room: Room) -> KeptJob:
        """Keep a new job."""
        return await self._access.write(partial(writes.add, new=new, room=None if self._alone else room))

    async def attach(self, number: int, epoch: int, holder: str, hold: int) -> KeptJob:
        """Have another stream hold a job."""
        return await self._access.write(partial(writes.attach, number=number, epoch=epoch, holder=holder, hold=hold))

    async def leave(self, holds: Mapping[int, int]) -> None:
        """Note that streams have ended."""
        await self._access.write(partial(writes.leave, holds=holds))

    async def move(
        self,
        number: int,
        move: Move,
        *,
        hold: int | None = None,
        progress: str | None = None,
        output: Sequence[OutputWrite] = (),
        result: bytes | None = None,
        settled_bytes: int = sys.maxsize,
    ) -> Moved:
        """Move a job."""
        operation = partial(
            writes.move,
            number=number,
            move=move,
            hold=hold,
            progress=progress,
            written=output,
            result=result,
            settled_bytes=settled_bytes,
        )
        return await (await self._access.submit(operation, _size_of(output) + len(result or b"")))

    async def write_output(
        self, written: Sequence[OutputWrite], progress: Mapping[int, str], holds: Mapping[int, int]
    ) -> None:
        """Keep output and progress."""
        operation = partial(writes.write_output, writes=written, progress=progress, holds=holds)
        await (await self._access.submit(operation, _size_of(written)))

    async def uncut(self, seconds: float) -> Sequence[int]:
        """Settled jobs that are to be cut."""
        return await self._access.read(partial(reads.uncut, seconds=seconds, limit=_CUT_AT_ONCE))

    async def cut_output(self, cut: Mapping[int, Sequence[OutputWrite]]) -> None:
        """Keep less output."""
        size = sum(map(_size_of, cut.values()))
        await (await self._access.submit(partial(writes.cut_output, cut=cut), size))

    async def find(self, number: int) -> KeptJob | None:
        """A job."""
        return await self._access.read(partial(reads.find, number=number))

    async def find_request(self, owner: str, request_id: str) -> KeptJob | None:
        """The job of a request."""
        return await self._access.read(partial(reads.find_request, owner=owner, request_id=request_id))

    async def unsettled(self) -> Sequence[KeptJob]:
        """Jobs that are not settled."""
        return await self._access.read(reads.unsettled)

    async def list_jobs(self, query: JobQuery, before: int | None = None) -> Sequence[KeptJob]:
        """Jobs by descending number."""
        return await self._access.read(partial(reads.list_jobs, query=query, before=before))

    async def position(self) -> int:
        """The last change."""
        return await self._access.read(reads.position)

    async def changes(self, query: JobQuery, after: int) -> Changes:
        """Jobs by change."""
        return await self._access.read(partial(reads.changes, query=query, after=after))

    async def output(self, number: int, source: str | None = None, offset: int = 0) -> Sequence[KeptOutput]:
        """Output of sources."""
        return await self._access.read(partial(reads.output_of, number=number, source=source, offset=offset))

    async def result_part(self, number: int, part: int) -> bytes | None:
        """A part of a result."""
        return await self._access.read(partial(reads.result_part, number=number, part=part))

    async def renew(self, name: str, lease: float) -> Collection[str]:
        """Note that a registry is there."""
        operation = partial(writes.renew, name=name, lease=lease, alone=self._alone)
        return await self._access.write(operation, urgent=True)

    async def listen(self, listener: Listener) -> None:
        """Hear what others do."""
        await self._access.hear(heard_by(listener))

    async def delete(self, number: int) -> None:
        """Delete a settled job."""
        await self._access.write(partial(writes.delete_job, number=number))

    async def purge(self, retention: Retention) -> int:
        """Forget what is beyond the retention."""
        purged = 0
        while some := await self._access.write(partial(writes.purge, retention=retention, limit=_PURGED_AT_ONCE)):
            purged += some
        return purged


def _size_of(output: Sequence[OutputWrite]) -> int:
    return sum(len(piece.data) for write in output for piece in write.pieces)
