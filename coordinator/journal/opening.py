"""Opens the journal that the configuration names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from coordinator.config import JournalSettings
from coordinator.journal import migrations
from coordinator.journal.journal import Journal, Retention
from coordinator.journal.payloads import LocalObjects
from coordinator.journal.sql.journal import sql_journal
from coordinator.journal.sql.schema import JOURNAL, SCHEMA
from fanfold.sql.opening import open_sqlite


@asynccontextmanager
async def open_journal(settings: JournalSettings) -> AsyncIterator[Journal | None]:
    """The journal, made or brought up to date first; None if there is to be none (C17).

    Leaving it waits for all that it was asked to do.

    Raises:
        FailedPrecondition: it cannot be opened, or a newer release has written it; says why.
    """
    if not settings.path:
        yield None
        return
    path = Path(settings.path)
    objects = Path(settings.objects or f"{settings.path}.objects")
    database = await asyncio.to_thread(open_sqlite, path, JOURNAL, migrations, SCHEMA)
    async with sql_journal(database, LocalObjects(objects), inline_bytes=settings.inline_bytes) as journal:
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
