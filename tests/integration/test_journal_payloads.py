"""Large payloads of the journal: kept in files beside it, verified, and deleted with what refers to them."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.journal import migrations
from coordinator.journal.journal import Fenced, Journal, JournalFailed, Retention
from coordinator.journal.payloads import LocalObjects
from coordinator.journal.sql.journal import sql_journal
from coordinator.journal.sql.schema import JOURNAL, SCHEMA
from fanfold.errors import Aborted, InternalError
from fanfold.model.run import RunState
from fanfold.sql.migration import migrate
from fanfold.sql.sqlite import sqlite_database
from support.journals import (
    ALICE,
    HERE,
    LONG,
    OVER,
    THERE,
    append,
    ending,
    events,
    eventually,
    new_run,
    record,
    sqlite_journal,
)

LARGE = b"x" * 70_000
NOTHING_OLD = Retention()


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    async with sqlite_journal(tmp_path) as opened:
        yield opened


def objects(folder: Path) -> set[Path]:
    return {path for path in (folder / "journal.db.objects").rglob("*") if path.is_file()}


def spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"x", b"y", 1))


@pytest.mark.contract("F11")
async def test_what_is_large_is_kept_outside_of_the_file_and_comes_back(journal: Journal, tmp_path: Path) -> None:
    await journal.accept(new_run("r", workflow_id="w", request=LARGE + b"request"), HERE, LONG)
    kept = [*events(1, 2), *events(3, 2, LARGE), *events(5, 1), *events(6, 1, LARGE)]
    await journal.append(append("r", kept, records=[record("a", LARGE), record("b"), record("c", LARGE + b"!")]))
    assert await journal.request("r") == LARGE + b"request"
    assert list(await journal.entries("r", 1)) == kept
    assert list(await journal.entries("r", 4)) == kept[3:]
    assert list(await journal.entries("r", 1, max_bytes=100_000)) == kept[:3]
    assert {it.key: it.data for it in await journal.records(ALICE, "w")} == {
        "a": LARGE,
        "b": b"outcome",
        "c": LARGE + b"!",
    }
    assert sorted(path.stat().st_size for path in objects(tmp_path)) == [
        len(LARGE) + 7,
        2 * len(LARGE) + 1,
        sum(len(entry.data) for entry in kept if len(entry.data) > len(LARGE)),
    ]
    assert sum(path.stat().st_size for path in tmp_path.glob("journal.db*") if path.is_file()) < 8 * len(LARGE)


async def test_what_is_just_not_large_is_kept_in_the_file(journal: Journal, tmp_path: Path) -> None:
    await journal.accept(new_run("r", workflow_id="w", request=b"x" * 65_536), HERE, LONG)
    assert objects(tmp_path) == set()
    await journal.append(append("r", records=[record("a", b"x" * 65_537)]))
    assert len(objects(tmp_path)) == 1


@pytest.mark.contract("C17", "F11")
@pytest.mark.parametrize("harm", [Path.unlink, spoil, lambda path: path.write_bytes(b"")])
async def test_an_event_that_is_lost_is_an_error_that_names_its_run(
    journal: Journal, tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    await journal.accept(new_run("r"), HERE, LONG)
    await journal.append(append("r", events(1, 2)))
    await journal.append(append("r", events(3, 1, LARGE)))
    (path,) = objects(tmp_path)
    harm(path)
    with pytest.raises(JournalFailed, match="run r "):
        await journal.entries("r", 1)
    assert list(await journal.entries("r", 1, max_bytes=100)) == events(1, 2)
    await journal.append(append("r", events(4, 1)))
    assert list(await journal.entries("r", 4)) == events(4, 1)


@pytest.mark.contract("C17")
async def test_a_request_or_a_record_that_is_lost_is_an_error_that_says_whose(journal: Journal, tmp_path: Path) -> None:
    await journal.accept(new_run("r", workflow_id="w", request=LARGE), HERE, LONG)
    await journal.append(append("r", records=[record("a", LARGE)]))
    for path in objects(tmp_path):
        spoil(path)
    with pytest.raises(JournalFailed, match="run r "):
        await journal.request("r")
    with pytest.raises(JournalFailed, match="workflow 'w'"):
        await journal.records(ALICE, "w")


@pytest.mark.contract("C17")
async def test_a_store_that_cannot_be_written_fails_the_write_and_nothing_is_written(
    journal: Journal, tmp_path: Path
) -> None:
    await journal.accept(new_run("r", workflow_id="w"), HERE, LONG)
    (tmp_path / "journal.db.objects").write_text("in the way")
    with pytest.raises(JournalFailed):
        await journal.append(append("r", [*events(1, 1), *events(2, 1, LARGE)], records=[record("a")]))
    assert list(await journal.entries("r", 1)) == []
    assert list(await journal.records(ALICE, "w")) == []
    await journal.append(append("r", events(1, 1)))


# When objects go.


async def test_writes_that_are_refused_leave_no_object(journal: Journal, tmp_path: Path) -> None:
    await journal.accept(new_run("r", workflow_id="w", request_id="q"), HERE, OVER)
    await journal.accept(new_run("again", request_id="q", request=LARGE), HERE, LONG)
    with pytest.raises(Aborted):
        await journal.accept(new_run("other", workflow_id="w", request=LARGE), HERE, LONG)
    with pytest.raises(Aborted):
        await journal.put_records(ALICE, "w", [record("a", LARGE)])
    with pytest.raises(InternalError):
        await journal.append(append("r", events(5, 1, LARGE)))
    await journal.claim(THERE, LONG)
    with pytest.raises(Fenced):
        await journal.append(append("r", events(1, 1, LARGE), records=[record("a", LARGE)]))
    assert objects(tmp_path) == set()


@pytest.mark.contract("C39")
async def test_objects_of_events_go_with_these_and_those_of_records_stay(journal: Journal, tmp_path: Path) -> None:
    await journal.accept(new_run("r", workflow_id="w", request=LARGE), HERE, LONG)
    await journal.append(ending("r", entries=events(1, 3, LARGE), records=[record("a", LARGE)]))
    assert len(objects(tmp_path)) == 3
    await journal.sweep(Retention(events=0))
    assert len(objects(tmp_path)) == 2
    assert await journal.request("r") == LARGE
    assert await journal.sweep(Retention(ended_runs=0)) == 1
    assert len(objects(tmp_path)) == 1
    assert list(await journal.records(ALICE, "w")) == [record("a", LARGE)]


@pytest.mark.contract("C16", "C39")
@pytest.mark.parametrize("how", ["forgotten", "replaced", "stale"])
async def test_objects_of_records_go_with_these(journal: Journal, tmp_path: Path, how: str) -> None:
    await journal.accept(new_run("r", workflow_id="w"), HERE, LONG)
    await journal.append(append("r", events(1, 1, LARGE), records=[record("a", LARGE)]))
    await journal.append(append("r", records=[record("b", LARGE)]))
    assert len(objects(tmp_path)) == 3
    await journal.append(ending("r", state=RunState.COMPLETED, forget_records=how == "forgotten"))
    if how == "replaced":
        await journal.put_records(ALICE, "w", [record("a")])

    async def are_gone() -> bool:
        await journal.sweep(Retention(record_age=0.001 if how == "stale" else LONG))
        return len(objects(tmp_path)) == 1

    await eventually(are_gone, "the objects of the records are gone")
    assert list(await journal.entries("r", 1)) == events(1, 1, LARGE)


async def test_a_sweep_deletes_old_objects_that_nothing_refers_to_and_no_others(
    journal: Journal, tmp_path: Path
) -> None:
    await journal.accept(new_run("r", workflow_id="w", request=LARGE), HERE, LONG)
    await journal.append(append("r", events(1, 1, LARGE), records=[record("a", LARGE)]))
    in_use = objects(tmp_path)
    folder = next(iter(in_use)).parent
    old, unfinished, young = folder / "old", folder / "old-unfinished", folder / "young"
    of_another_journal = folder.parent.parent / "another/ab/old"
    of_another_journal.parent.mkdir(parents=True)
    for path in (old, unfinished, young, of_another_journal):
        path.write_bytes(b"x")
    for path in {old, unfinished, of_another_journal, *in_use}:
        os.utime(path, (0, 0))
    await journal.sweep(NOTHING_OLD)
    assert objects(tmp_path) == in_use | {young, of_another_journal}
    assert list(await journal.entries("r", 1)) == events(1, 1, LARGE)


class SweptMeanwhile(LocalObjects):
    """A store whose objects are swept, with the rows that refer to them, just before they are read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "objects")
        self.file = folder / "journal.db"

    def get(self, name: str, offset: int, size: int) -> bytes:
        with closing(sqlite3.connect(self.file)) as connection:
            connection.execute("DELETE FROM event_segments WHERE object = ?", (name,))
            connection.commit()
        self.delete([name])
        return super().get(name, offset, size)


async def test_events_that_are_swept_while_they_are_read_are_swept_events(tmp_path: Path) -> None:
    database = sqlite_database(tmp_path / "journal.db", JOURNAL)
    migrate(database, migrations, SCHEMA)
    async with sql_journal(database, SweptMeanwhile(tmp_path)) as journal:
        await journal.accept(new_run("r"), HERE, LONG)
        await journal.append(append("r", events(1, 1, LARGE)))
        await journal.append(append("r", events(2, 1)))
        assert list(await journal.entries("r", 1)) == events(2, 1)
