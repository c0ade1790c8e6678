"""The journal in a file: what a crash, other processes and broken files do to it, and how its schema changes."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from coordinator.config import JournalSettings
from coordinator.journal import migrations
from coordinator.journal.journal import JournalFailed, Retention
from coordinator.journal.opening import open_journal, retention_of
from coordinator.journal.sql.schema import JOURNAL, SCHEMA
from coordinator.journal.sql.tables import metadata
from fanfold.errors import FailedPrecondition, InternalError
from fanfold.sql.migration import migrate
from fanfold.sql.sqlite import sqlite_database
from support.journals import ALICE, HERE, LONG, OVER, all_entries, append, events, new_run, sqlite_journal

CHILD = Path(__file__).with_name("journal_child.py")
TESTS = CHILD.parent.parent
DEADLINE = 60.0


@asynccontextmanager
async def children(folder: Path, what: str, *names: str) -> AsyncIterator[list[Process]]:
    """Processes with the journal of `folder`, which begin at the same time, and are killed at the end of the block."""
    environment = os.environ | {"PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    async with AsyncExitStack() as stack:
        processes = []
        for name in names:
            process = await asyncio.create_subprocess_exec(
                sys.executable, str(CHILD), str(folder), name, what, stdin=PIPE, stdout=PIPE, env=environment
            )
            stack.push_async_callback(ended, process)
            processes.append(process)
        for process in processes:
            assert await told(process) == ["ready"]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
        yield processes


async def ended(process: Process) -> None:
    """Kill it if it has not ended."""
    if process.returncode is None:
        process.kill()
    await process.communicate()


async def told(process: Process) -> list[str]:
    """The words of the next line; none at the end."""
    assert process.stdout is not None
    async with asyncio.timeout(DEADLINE):
        return (await process.stdout.readline()).decode().split()


@pytest.mark.process
@pytest.mark.contract("C16", "C19", "F6")
@pytest.mark.parametrize("name", ["inline", "by-reference"])
async def test_whatever_was_acknowledged_before_a_kill_is_there(tmp_path: Path, name: str) -> None:
    acknowledged: dict[str, int] = {}
    async with children(tmp_path, "append", name) as (process,):
        for _ in range(100):
            run_id, last = await told(process)
            acknowledged[run_id] = int(last)
        process.kill()
        while words := await told(process):  # what it told before it died
            acknowledged[words[0]] = int(words[1])
    async with sqlite_journal(tmp_path) as journal:
        for run_id, number in acknowledged.items():
            kept = await all_entries(journal, run_id)
            assert len(kept) >= number
            assert kept == events(1, len(kept))
            keys = {int(it.key) for it in await journal.records(ALICE, run_id)}
            assert keys == set(range(8, len(kept) + 1, 8))
            await journal.append(append(run_id, events(len(kept) + 1, 1)))


@pytest.mark.process
async def test_processes_append_to_one_file_at_the_same_time(tmp_path: Path) -> None:
    async with children(tmp_path, "append", "one", "two") as processes:
        for process in processes * 40:
            assert len(await told(process)) == 2
    async with sqlite_journal(tmp_path) as journal:
        for name in ("one", "two"):
            kept = await all_entries(journal, f"{name}-0")
            assert len(kept) >= 8
            assert kept == events(1, len(kept))


@pytest.mark.process
@pytest.mark.contract("C18", "C19", "F5")
async def test_processes_that_claim_at_the_same_time_share_the_runs(tmp_path: Path) -> None:
    names = {f"r{number}" for number in range(60)}
    async with sqlite_journal(tmp_path) as journal:
        await asyncio.gather(*(journal.accept(new_run(name), HERE, OVER) for name in names))
    claimed: list[list[str]] = []
    async with children(tmp_path, "claim", "one", "two") as processes:
        for process in processes:
            while words := await told(process):
                claimed.append(words)
    assert sorted(run_id for run_id, _ in claimed) == sorted(names)
    assert {epoch for _, epoch in claimed} == {"2"}


@pytest.mark.process
async def test_processes_that_open_a_new_file_at_the_same_time_make_it_once(tmp_path: Path) -> None:
    names = [f"claimer-{number}" for number in range(4)]
    async with children(tmp_path, "claim", *names) as processes:
        assert [await told(process) for process in processes] == [[]] * 4
        assert [await process.wait() for process in processes] == [0] * 4


async def test_two_journals_on_one_file_see_what_the_other_one_wrote(tmp_path: Path) -> None:
    async with sqlite_journal(tmp_path) as one, sqlite_journal(tmp_path) as two:
        await one.accept(new_run("r"), HERE, LONG)
        await two.append(append("r", events(1, 3)))
        assert list(await one.entries("r", 1)) == events(1, 3)
        with pytest.raises(InternalError):
            await one.append(append("r", events(3, 3)))


# Opening.


@pytest.mark.contract("C17")
async def test_without_a_path_there_is_no_journal() -> None:
    async with open_journal(JournalSettings()) as journal:
        assert journal is None


async def test_only_this_user_can_read_a_journal(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    async with sqlite_journal(folder, inline_bytes=0) as journal:
        await journal.accept(new_run("r", request=b"secret"), HERE, LONG)
        modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir() if path.is_file()}
    assert modes == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "journal.db.objects").stat().st_mode) == 0o700


async def test_what_is_kept_is_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    objects = tmp_path / "elsewhere"
    large = events(1, 2, b"x" * 100_000)
    async with sqlite_journal(tmp_path, objects=str(objects)) as journal:
        await journal.accept(new_run("r"), HERE, LONG)
        await journal.append(append("r", large))
    assert any(path.is_file() for path in objects.rglob("*"))
    async with sqlite_journal(tmp_path, objects=str(objects)) as journal:
        assert await all_entries(journal, "r") == large


@pytest.mark.parametrize("what", ["folder", "no database", "below a file"])
async def test_a_file_that_cannot_be_a_journal_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "journal.db"
    if what == "folder":
        path.mkdir()
    else:
        path.write_text("this is no database, and long enough to be seen as none" * 10)
    if what == "below a file":
        path /= "journal.db"
    with pytest.raises(FailedPrecondition, match=r"journal\.db cannot be opened"):
        async with open_journal(JournalSettings(path=str(path))):
            pass


async def test_the_settings_say_what_is_kept() -> None:
    settings = JournalSettings.model_validate(
        {"retention": {"ended_runs": 1, "ended_run_age": 2, "events": 3, "record_age": 4}}
    )
    assert retention_of(settings) == Retention(ended_runs=1, ended_run_age=2.0, events=3, record_age=4.0)
    assert retention_of(JournalSettings()) == Retention()


# The schema.


def test_migrations_make_the_tables_that_the_code_knows(tmp_path: Path) -> None:
    migrated, made = (sqlite_database(tmp_path / name, JOURNAL) for name in ("migrated.db", "made.db"))
    migrate(migrated, migrations, SCHEMA)
    with made.writer.begin() as connection:
        metadata.create_all(connection)
    with migrated.reader.begin() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    assert _indexes(tmp_path / "migrated.db") == _indexes(tmp_path / "made.db")
    migrated.close()
    made.close()


def test_the_schema_that_is_known_is_the_latest_migration() -> None:
    assert ScriptDirectory(str(Path(migrations.__file__).parent)).get_current_head() == SCHEMA


def _indexes(path: Path) -> set[str]:
    """How indexes are made; Alembic does not compare their conditions."""
    with closing(sqlite3.connect(path)) as connection:
        return {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE type = 'index'") if sql}


async def test_a_journal_of_a_newer_release_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with sqlite_journal(tmp_path) as journal:
        await journal.accept(new_run("r"), HERE, LONG)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
        before = list(connection.iterdump())
    with pytest.raises(FailedPrecondition, match=r"newer release \(schema 9999; this one knows 0002\)"):
        async with sqlite_journal(tmp_path):
            pass
    with closing(sqlite3.connect(path)) as connection:
        assert list(connection.iterdump()) == before


@pytest.mark.contract("C19")
async def test_a_run_of_a_kind_that_only_a_newer_release_knows_is_shown_and_never_claimed(tmp_path: Path) -> None:
    async with sqlite_journal(tmp_path) as journal:
        await journal.accept(new_run("r"), HERE, OVER)
        with closing(sqlite3.connect(tmp_path / "journal.db")) as connection:
            connection.execute("UPDATE runs SET kind = 'tournament'")
            connection.commit()
        assert list(await journal.claim(HERE, LONG)) == []
        kept = await journal.find("r")
        assert kept is not None
        assert (kept.epoch, kept.run.ended_at) == (1, None)


async def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE event_segments (x)")  # in the way of the third table
    with pytest.raises(FailedPrecondition, match="event_segments already exists"):
        async with sqlite_journal(tmp_path):
            pass
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    assert tables == ["event_segments"]


# Files that break.


@pytest.mark.contract("C17")
async def test_a_file_that_breaks_is_an_error_and_no_crash(tmp_path: Path) -> None:
    async with sqlite_journal(tmp_path) as journal:
        await journal.accept(new_run("r"), HERE, LONG)
    async with sqlite_journal(tmp_path) as journal:
        with (tmp_path / "journal.db").open("r+b") as file:
            file.write(b"\0" * 200_000)
        with pytest.raises(JournalFailed):
            await journal.find("r")
        with pytest.raises(JournalFailed):
            await journal.append(append("r", events(1, 1)))
