"""Databases as earlier releases have left them: rows as those wrote them, kept in `tests/rows` for each schema.

Before a schema is changed, `PYTHONPATH=tests python -m support.earlier` writes the rows of the one that is in use.
"""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, Table, func, insert, select

import coordinator.journal.migrations
import coordinator.journal.sql.schema
import job_registry.store.migrations
import job_registry.store.sql.schema
from coordinator.journal.sql.schema import JOURNAL
from fanfold.sql.database import Contents, Database
from fanfold.sql.migration import migrate
from fanfold.sql.sqlite import sqlite_database
from job_registry.store.sql.schema import STORE
from support.job_stores import sqlite_store
from support.journals import sqlite_journal
from support.kept import fill_journal, fill_store

ROWS = Path(__file__).parent.parent / "rows"

_VERSIONS = "alembic_version"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of database, and how it came to be what it is."""

    contents: Contents
    steps: ModuleType
    latest: str
    fill: Callable[[Path], Coroutine[Any, Any, Path]]
    """Puts into a new one, in this folder, what is to be found again; gives its file."""

    def earlier(self) -> list[str]:
        """The schemas before the latest, the newest first."""
        assert self.steps.__file__ is not None
        steps = ScriptDirectory(str(Path(self.steps.__file__).parent)).walk_revisions()
        return [step.revision for step in steps if step.revision != self.latest]

    def rows(self, schema: str) -> Path:
        """Where the rows of a schema are."""
        return ROWS / f"{self.contents.name.replace(' ', '_')}-{schema}.json"

    def make(self, database: Database, schema: str) -> None:
        """Make an empty database what a release of that schema has left."""
        migrate(database, self.steps, schema)
        kept = json.loads(self.rows(schema).read_text())
        with database.writer.begin() as connection:
            tables = _tables(connection)
            assert tables.keys() == kept.keys(), "a database has other tables than a release of its schema has made"
            for name, rows in kept.items():
                connection.execute(tables[name].delete())
                if rows:
                    connection.execute(insert(tables[name]), [_decoded(row) for row in rows])
                _count_on(connection, tables[name])


async def _filled_journal(folder: Path) -> Path:
    async with sqlite_journal(folder) as journal:
        await fill_journal(journal)
    return folder / "journal.db"


async def _filled_store(folder: Path) -> Path:
    async with sqlite_store(folder) as store:
        await fill_store(store)
    return folder / "jobs.db"


KINDS = [
    Kind(JOURNAL, coordinator.journal.migrations, coordinator.journal.sql.schema.SCHEMA, _filled_journal),
    Kind(STORE, job_registry.store.migrations, job_registry.store.sql.schema.SCHEMA, _filled_store),
]


def _tables(connection: Connection) -> dict[str, Table]:
    metadata = MetaData()
    metadata.reflect(connection)
    return {name: table for name, table in sorted(metadata.tables.items()) if name != _VERSIONS}


def _count_on(connection: Connection, table: Table) -> None:
    """Have the next row that is numbered by the database come after those that were put there."""
    if connection.dialect.name == "postgresql":
        for column in table.primary_key:
            sequence = connection.scalar(select(func.pg_get_serial_sequence(table.name, column.name)))
            if sequence is not None:
                connection.execute(select(func.setval(sequence, select(func.max(column)).scalar_subquery())))


def _encoded(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
        for name, value in row.items()
    }


def _decoded(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: base64.b64decode(value["base64"]) if isinstance(value, dict) else value for name, value in row.items()
    }


def _write(kind: Kind) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = asyncio.run(kind.fill(Path(folder)))
        database = sqlite_database(file, kind.contents)
        with database.reader.begin() as connection:
            rows = {
                name: [_encoded(dict(row._mapping)) for row in connection.execute(select(table))]
                for name, table in _tables(connection).items()
            }
        database.close()
    kind.rows(kind.latest).write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    ROWS.mkdir(exist_ok=True)
    for each in KINDS:
        _write(each)
