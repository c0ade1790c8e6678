"""Opens the journal that the configuration names."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from coordinator.config import JournalSettings
from coordinator.journal import migrations
from coordinator.journal.journal import Journal, Retention
from coordinator.journal.payloads import LocalObjects, NoObjects
from coordinator.journal.sql.journal import sql_journal
from coordinator.journal.sql.schema import JOURNAL, SCHEMA
from fanfold.sql.metrics import DatabaseCounts
from fanfold.sql.opening import open_database


@asynccontextmanager
async def open_journal(
    settings: JournalSettings, counts: DatabaseCounts | None = None
) -> AsyncIterator[Journal | None]:
    """The journal, made or brought up to date first; None if there is to be none (C17).

    Leaving it waits for all that it was asked to do. `counts` is what its writer counts with.

    Raises:
        FailedPrecondition: it cannot be opened, or a newer release has written it; says why.
    """
    if not settings.is_set:
        yield None
        return
    folder = settings.objects or (f"{settings.path}.objects" if settings.path else "")
    objects = LocalObjects(Path(folder)) if folder else NoObjects()
    inline_bytes = settings.inline_bytes if folder else sys.maxsize
    database = await asyncio.to_thread(open_database, settings, JOURNAL, migrations, SCHEMA, counts=counts)
    async with sql_journal(database, objects, inline_bytes=inline_bytes) as journal:
        yield journal


def retention_of(settings: JournalSettings) -> Retention:
    """What the configuration says is kept."""
    limits = settings.retention
    return Retention(
        ended_runs=limits.ended_runs,
        ended_run_age=limits.ended_run_age,
        events=limits.events,
        record_age=limits.record_age,
    )
