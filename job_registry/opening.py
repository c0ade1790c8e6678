"""Opens the store that the configuration names."""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path

from fanfold.errors import FailedPrecondition
from fanfold.sql.metrics import DatabaseCounts
from fanfold.sql.opening import open_database
from fanfold.sql.settings import DatabaseSettings
from job_registry.store import migrations
from job_registry.store.memory import MemoryJobStore
from job_registry.store.sql.schema import SCHEMA, STORE
from job_registry.store.sql.store import sql_store
from job_registry.store.store import JobStore


@asynccontextmanager
async def open_store(settings: DatabaseSettings, counts: DatabaseCounts | None = None) -> AsyncIterator[JobStore]:
    """The store in a database, made or brought up to date first; in memory if there is to be none.

    Leaving it waits for all that it was asked to do. `counts` is what its writer counts with.

    Raises:
        FailedPrecondition: it cannot be opened, or a newer release has written it, or another registry has its file;
            says why.
    """
    if not settings.is_set:
        yield MemoryJobStore()
        return
    with _held_alone(Path(settings.path)) if settings.path else nullcontext():
        database = await asyncio.to_thread(
            open_database, settings, STORE, migrations, SCHEMA, counts=counts, exclusive=True
        )
        async with sql_store(database, alone=bool(settings.path)) as store:
            yield store


@contextmanager
def _held_alone(file: Path) -> Iterator[None]:
    """Exclude other registries, which would not know of what this one holds in memory."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = file.with_name(f"{file.name}.lock").open("w")
    except OSError as error:
        raise FailedPrecondition(f"the job store {file} cannot be opened: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FailedPrecondition(f"the job store {file} is held by another registry") from None
        yield
