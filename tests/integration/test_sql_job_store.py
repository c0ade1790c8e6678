"""The store of jobs in a file: who may open it, which schema it has, and what it does when it cannot be written."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from coordinator.config import JournalSettings
from coordinator.journal.opening import open_journal
from fanfold.errors import FailedPrecondition
from fanfold.sql.migration import migrate
from fanfold.sql.sqlite import sqlite_database
from job_registry.store import migrations
from job_registry.store.sql.schema import SCHEMA, STORE
from job_registry.store.sql.tables import metadata
from job_registry.store.store import ChangesGone, JobQuery, Retention, StoreFailed
from support.job_stores import add, add_settled, sqlite_store


def test_migrations_make_the_tables_that_the_code_knows(tmp_path: Path) -> None:
    database = sqlite_database(tmp_path / "jobs.db", STORE)
    migrate(database, migrations, SCHEMA)
    with database.reader.begin() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []
    database.close()
    assert ScriptDirectory(str(Path(migrations.__file__).parent)).get_current_head() == SCHEMA


async def test_a_file_of_a_newer_release_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path) as store:
        await add(store)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    with pytest.raises(FailedPrecondition, match="newer release"):
        async with sqlite_store(tmp_path):
            pass


async def test_what_is_no_store_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    async with open_journal(JournalSettings(path=str(tmp_path / "jobs.db"))):
        pass
    before = (tmp_path / "jobs.db").read_bytes()
    with pytest.raises(FailedPrecondition, match=r"the job store .* is none: it has something else in it"):
        async with sqlite_store(tmp_path):
            pass
    assert (tmp_path / "jobs.db").read_bytes() == before


async def test_a_second_registry_is_refused_while_the_first_one_holds_the_file(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path) as store:
        with pytest.raises(FailedPrecondition, match="held by another registry"):
            async with sqlite_store(tmp_path):
                pass
        await add(store)
    async with sqlite_store(tmp_path) as store:
        assert len(await store.unsettled()) == 1


async def test_a_place_where_no_file_can_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FailedPrecondition, match="cannot be opened"):
        async with sqlite_store(tmp_path / "file"):
            pass


async def test_a_file_that_is_gone_is_told_as_the_stores_failure(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path) as store:
        await add(store)
        (tmp_path / "jobs.db").rename(tmp_path / "moved.db")
        with pytest.raises(StoreFailed):
            await store.take_number()
        with pytest.raises(StoreFailed):
            await store.find(1)


@pytest.mark.contract("F23")
async def test_what_was_forgotten_stays_forgotten_when_the_clock_was_wrong_for_a_while(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path) as store:
        early, late = await add_settled(store), await add_settled(store)
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
            connection.execute("UPDATE jobs SET settled_at = settled_at + 3600000000 WHERE number = ?", [early.number])
            connection.commit()
        assert await store.purge(Retention(settled_jobs=10, settled_jobs_per_owner=10, settled_age=0.0)) == 1
        assert await store.purge(Retention(settled_jobs=0, settled_jobs_per_owner=10, settled_age=7200.0)) == 1
        with pytest.raises(ChangesGone):
            await store.changes(JobQuery(), late.change - 1)
