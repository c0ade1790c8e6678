"""PostgreSQL as the database of a service: how it is opened, and its schemas."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from pydantic import ValidationError
from sqlalchemy import MetaData, inspect

import coordinator.journal.migrations
import coordinator.journal.sql.schema
import coordinator.journal.sql.tables
import job_registry.store.migrations
import job_registry.store.sql.schema
import job_registry.store.sql.tables
from coordinator.config import JournalSettings
from coordinator.journal.opening import open_journal
from coordinator.journal.sql.schema import JOURNAL
from fanfold.errors import FailedPrecondition
from fanfold.sql.database import Contents
from fanfold.sql.opening import open_database
from fanfold.sql.postgres import postgres_database
from fanfold.sql.settings import DatabaseSettings
from job_registry.store.sql.schema import STORE
from support.job_stores import add, postgres_store
from support.journals import (
    HERE,
    LONG,
    new_run,
    postgres_journal,
)
from support.postgres import GUARDED, Server, execute


@pytest.mark.parametrize(
    ("contents", "steps", "schema", "metadata"),
    [
        (
            JOURNAL,
            coordinator.journal.migrations,
            coordinator.journal.sql.schema.SCHEMA,
            coordinator.journal.sql.tables.metadata,
        ),
        (
            STORE,
            job_registry.store.migrations,
            job_registry.store.sql.schema.SCHEMA,
            job_registry.store.sql.tables.metadata,
        ),
    ],
    ids=["journal", "job store"],
)
def test_migrations_make_the_tables_that_the_code_knows(
    postgres: Server, url: str, contents: Contents, steps: ModuleType, schema: str, metadata: MetaData
) -> None:
    migrated = open_database(DatabaseSettings(url=url), contents, steps, schema)
    with postgres.database() as elsewhere:
        made = postgres_database(elsewhere, contents)
        with made.writer.begin() as connection:
            metadata.create_all(connection)
        with migrated.reader.begin() as one, made.reader.begin() as other:
            assert compare_metadata(MigrationContext.configure(one), metadata) == []
            indexes = "SELECT indexdef FROM pg_indexes WHERE tablename = ANY (%s)"
            names = (list(metadata.tables),)
            assert {*one.exec_driver_sql(indexes, names)} == {*other.exec_driver_sql(indexes, names)}
            for table in metadata.sorted_tables:
                assert _collations(inspect(one).get_columns(table.name)) == _collations(
                    inspect(other).get_columns(table.name)
                )
        made.close()
    migrated.close()


def _collations(columns: object) -> list[tuple[str, object]]:
    assert isinstance(columns, list)
    return sorted((column["name"], getattr(column["type"], "collation", None)) for column in columns)


async def test_a_journal_and_a_job_store_share_a_database(url: str) -> None:
    async with postgres_journal(url) as journal, postgres_store(url) as store:
        await journal.accept(new_run("r"), HERE, LONG)
        assert (await add(store)).number == 1
        assert await journal.find("r") is not None


async def test_journals_that_open_a_new_database_at_the_same_time_make_it_once(url: str) -> None:
    async with AsyncExitStack() as stack:
        opened = await asyncio.gather(*(stack.enter_async_context(postgres_journal(url)) for _ in range(4)))
        await opened[0].accept(new_run("r"), HERE, LONG)
        assert all([await journal.find("r") for journal in opened])


async def test_a_database_of_a_newer_release_is_refused(url: str) -> None:
    async with postgres_journal(url):
        pass
    execute(url, "UPDATE fanfold_journal.alembic_version SET version_num = '9999'")
    with pytest.raises(FailedPrecondition, match=r"newer release \(schema 9999"):
        async with postgres_journal(url):
            pass


async def test_a_migration_that_fails_changes_nothing(url: str) -> None:
    execute(url, "CREATE SCHEMA fanfold_journal CREATE TABLE event_segments (x int)")
    with pytest.raises(FailedPrecondition, match='"event_segments" already exists'):
        async with postgres_journal(url):
            pass
    tables = execute(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'fanfold_journal'")
    assert tables == [("event_segments",)]


async def test_the_password_comes_from_its_file_and_is_in_no_message(postgres: Server, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    with postgres.named_database() as name, postgres.guarded(name) as password:
        settings = {"url": postgres.url(name, GUARDED), "password_file": str(secret)}
        secret.write_text(f"{password}\n")
        async with open_journal(JournalSettings.model_validate(settings)) as journal:
            assert journal is not None
            await journal.accept(new_run("r"), HERE, LONG)
        secret.write_text("another secret\n")
        with pytest.raises(FailedPrecondition, match="password authentication failed") as refused:
            async with open_journal(JournalSettings.model_validate(settings)):
                pass
        assert "another secret" not in refused.value.message
        secret.unlink()
        with pytest.raises(FailedPrecondition, match="No such file"):
            async with open_journal(JournalSettings.model_validate(settings)):
                pass


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"url": "postgresql://me:secret@db/fanfold"}, "must not contain the password"),
        ({"url": "postgresql://me@db/fanfold?password=secret"}, "must not contain the password"),
        ({"url": "postgresql://me@db/fanfold?sslpassword=secret"}, "must not contain the password"),
        ({"url": "postgresql://me@db/fanfold?oauth_client_secret=secret"}, "must not contain the password"),
        ({"url": "postgresql://me@db/fanfold?scram_client_key=secret"}, "must not contain the password"),
        ({"url": "postgresql://me@db/fanfold?PASSWORD=secret"}, "must not contain the password"),
        ({"url": "postgresql://me@db:secret/fanfold"}, "url must be like postgresql://"),
        ({"url": "postgresql://me@db1:5432,db2:5432/fanfold"}, "with one host and port"),
        ({"url": "mysql://me@db/fanfold"}, "must begin with postgresql://"),
        ({"url": "db.example.com"}, "must be like"),
        ({"url": "postgresql://db/fanfold", "path": "journal.db"}, "exclude one another"),
    ],
)
def test_settings_that_are_wrong_are_refused(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        DatabaseSettings.model_validate(settings)


async def test_a_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match=r"the journal postgresql:.* cannot be opened: OperationalError"):
        async with postgres_journal(f"postgresql://postgres@/x?host={tmp_path}"):
            pass
