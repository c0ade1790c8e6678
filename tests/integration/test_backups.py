"""Databases of SQLite that are copied while they are used."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fanfold.cli.main import app
from fanfold.errors import FailedPrecondition, InvalidArgument
from fanfold.sql.backup import back_up
from support.earlier import KINDS, Kind
from support.job_stores import sqlite_store
from support.journals import HERE, LONG, append, events, new_run, sqlite_journal
from support.kept import check_journal, check_store

JOURNALS, STORES = KINDS


@pytest.mark.contract("C19")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.contents.name)
async def test_a_copy_has_all_that_was_kept_and_can_be_gone_on_with(tmp_path: Path, kind: Kind) -> None:
    data, copies = tmp_path / "data", tmp_path / "copies"
    data.mkdir()
    file = await kind.fill(data)
    assert back_up(file, copies) == 0
    assert [path.name for path in copies.iterdir()] == [file.name]
    if kind is JOURNALS:
        async with sqlite_journal(copies) as journal:
            await check_journal(journal)
    else:
        async with sqlite_store(copies) as store:
            await check_store(store)


async def test_large_payloads_come_along_and_are_copied_once_and_go_with_their_rows(tmp_path: Path) -> None:
    data, copies = tmp_path / "data", tmp_path / "copies"
    data.mkdir()
    large = b"x" * 100_000
    async with sqlite_journal(data) as journal:
        await journal.accept(new_run("a"), HERE, LONG)
        await journal.append(append("a", events(1, 1, large)))
        assert back_up(data / "journal.db", copies) == 1
        (first,) = payloads(copies)
        written_at = first.stat().st_mtime_ns
        await journal.append(append("a", events(2, 1, large)))
        assert back_up(data / "journal.db", copies) == 2
        assert first.stat().st_mtime_ns == written_at
    for path in payloads(data):
        if path.relative_to(data) == first.relative_to(copies):
            path.unlink()
    assert back_up(data / "journal.db", copies) == 1
    assert not first.exists()


async def test_a_copy_that_was_made_while_others_write_is_of_one_moment(tmp_path: Path) -> None:
    file, copies = tmp_path / "data.db", tmp_path / "copies"
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript("CREATE TABLE a (n); CREATE TABLE b (n)")
    ended = threading.Event()
    written = threading.Semaphore(0)

    def write() -> None:
        with closing(sqlite3.connect(file)) as database:
            while not ended.is_set():
                with database:
                    database.execute("INSERT INTO a VALUES (randomblob(5000))")
                    database.execute("INSERT INTO b VALUES (1)")
                written.release()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        kept = 0
        for _ in range(5):
            assert written.acquire(timeout=20)
            back_up(file, copies)
            with closing(sqlite3.connect(copies / "data.db")) as copy:
                (rows,), (others,) = (copy.execute(f"SELECT count(*) FROM {table}").fetchone() for table in "ab")
            assert rows == others
            assert rows > kept
            kept = rows
    finally:
        ended.set()
        writer.join()


def test_what_cannot_be_copied_leaves_the_copy_that_there_is(tmp_path: Path) -> None:
    file, copies = tmp_path / "data.db", tmp_path / "copies"
    with closing(sqlite3.connect(file)) as database:
        database.executescript("CREATE TABLE a (n); INSERT INTO a VALUES (1)")
    back_up(file, copies)
    before = (copies / "data.db").read_bytes()
    file.write_bytes(b"this is no database")
    with pytest.raises(FailedPrecondition, match="file is not a database"):
        back_up(file, copies)
    assert (copies / "data.db").read_bytes() == before
    assert [path.name for path in copies.iterdir()] == ["data.db"]
    with pytest.raises(InvalidArgument, match="there is no such database"):
        back_up(tmp_path / "none.db", copies)
    with pytest.raises(InvalidArgument, match="in another folder"):
        back_up(file, tmp_path)


def test_a_database_may_be_called_whatever_a_file_may(tmp_path: Path) -> None:
    file = tmp_path / "of #1? 100%41.db"
    with closing(sqlite3.connect(file)) as database:
        database.executescript("CREATE TABLE a (n); INSERT INTO a VALUES (1)")
    back_up(file, tmp_path / "copies")
    with closing(sqlite3.connect(tmp_path / "copies" / file.name)) as copy:
        assert copy.execute("SELECT n FROM a").fetchall() == [(1,)]


def test_the_command_says_what_it_has_copied(tmp_path: Path) -> None:
    file = tmp_path / "data.db"
    with closing(sqlite3.connect(file)) as database:
        database.executescript("CREATE TABLE a (n)")
    done = CliRunner().invoke(app, ["backup", str(file), str(tmp_path / "copies")])
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == f"{tmp_path}/copies/data.db: a copy of {file}\n"


def payloads(folder: Path) -> list[Path]:
    return [path for path in (folder / "journal.db.objects").rglob("*") if path.is_file()]
