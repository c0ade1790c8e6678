"""Stores of jobs for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol, cast

from fanfold.model.job import JobState, OutputPiece, OutputSource
from fanfold.model.principal import outermost
from job_registry.config import JobLimits, StoreSettings
from job_registry.limits import Room
from job_registry.opening import open_store
from job_registry.states import Move, settled, stopped
from job_registry.store.store import JobStore, KeptJob, NewJob, OutputWrite

DONE = partial(settled, state=JobState.COMPLETED, detail="done")
STOP = partial(stopped, reason="enough")


class Opens(Protocol):
    """Opens a store of some kind; twice in one folder the same one, if it outlives its process."""

    def __call__(self, folder: Path) -> AbstractAsyncContextManager[JobStore]: ...


@asynccontextmanager
async def memory_store(folder: Path) -> AsyncIterator[JobStore]:
    """A store in memory."""
    async with open_store(StoreSettings()) as store:
        yield store


@asynccontextmanager
async def sqlite_store(folder: Path) -> AsyncIterator[JobStore]:
    """The store in a file of the folder."""
    async with open_store(StoreSettings(path=str(folder / "jobs.db"))) as store:
        yield store


@asynccontextmanager
async def postgres_store(url: str) -> AsyncIterator[JobStore]:
    """The store in a database of PostgreSQL."""
    async with open_store(StoreSettings(url=url)) as store:
        yield store


@asynccontextmanager
async def postgres_stores(url: str) -> AsyncIterator[JobStore]:
    """The stores of two registries in one database, which are asked in turns."""
    async with postgres_store(url) as one, postgres_store(url) as other:
        yield cast(JobStore, _InTurns([one, other]))


class _InTurns:
    def __init__(self, stores: Sequence[JobStore]) -> None:
        self._stores = cycle(stores)

    def __getattr__(self, name: str) -> Any:
        return getattr(next(self._stores), name)


async def add(store: JobStore, limits: JobLimits | None = None, position: int = -1, **fields: Any) -> KeptJob:
    """A job with the next number, from a registry that knows of no jobs up to a position and of none after it."""
    number = await store.take_number()
    plain: dict[str, Any] = {"kind": "k", "owner": "alice", "producer": "alice", "request_id": f"r{number}", "epoch": 1}
    new = NewJob(number=number, **{**plain, **fields})
    return await store.add(new, Room(limits or JobLimits(), outermost(new.counted_by), position=position))


async def add_settled(store: JobStore, move: Move = DONE, **fields: Any) -> KeptJob:
    """A job that is settled."""
    return await moved(store, (await add(store, **fields)).number, move)


async def moved(store: JobStore, number: int, move: Move, **fields: Any) -> KeptJob:
    """A job after a move."""
    return (await store.move(number, move, **fields)).job


def output_write(job: KeptJob, *pieces: tuple[int, bytes], earliest: int = 0, afresh: bool = False) -> OutputWrite:
    """Pieces of the source `out`, each by its offset."""
    total = max((offset + len(data) for offset, data in pieces), default=earliest)
    source = OutputSource(name="out", total_bytes=total, earliest_offset=earliest, lossy=earliest > 0)
    kept = [OutputPiece(offset=offset, data=data) for offset, data in pieces]
    return OutputWrite(number=job.number, source=source, pieces=kept, afresh=afresh)


async def keep_output(
    store: JobStore, *writes: OutputWrite, progress: Mapping[int, str] | None = None, hold: int = 1
) -> None:
    """Write output and progress, as a stream with that hold does."""
    lines = progress or {}
    await store.write_output(writes, lines, dict.fromkeys([*lines, *(write.number for write in writes)], hold))


async def pieces_of(store: JobStore, number: int, source: str = "out", offset: int = 0) -> list[tuple[int, bytes]]:
    """What is kept of a source, by offset."""
    return [
        (piece.offset, piece.data) for output in await store.output(number, source, offset) for piece in output.pieces
    ]
