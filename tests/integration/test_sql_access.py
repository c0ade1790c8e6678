"""Group commit, on a real SQLite file: who shares a transaction, and what one failure does to the others."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path

import pytest
import structlog
from structlog.testing import CapturingLogger

import fanfold.sql.complaints
from coordinator.journal.journal import Fenced, JournalFailed
from coordinator.journal.sql.schema import JOURNAL
from fanfold.sql.access import Access
from fanfold.sql.database import Database
from fanfold.sql.sqlite import sqlite_database
from fanfold.sql.writer import Operation, Transaction
from support.mesh import until

BUSY_SECONDS = 0.3


@pytest.fixture
def database(tmp_path: Path) -> Database:
    opened = sqlite_database(tmp_path / "x.db", JOURNAL, busy_seconds=BUSY_SECONDS)
    with opened.writer.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (x TEXT PRIMARY KEY)")
    return opened


@pytest.fixture
async def access(database: Database) -> AsyncIterator[Access]:
    async with Access(database) as opened:
        yield opened


@pytest.fixture
def complaints(monkeypatch: pytest.MonkeyPatch) -> CapturingLogger:
    """What is logged of them, whatever level other tests have had set for this process."""
    log = CapturingLogger()
    monkeypatch.setattr(fanfold.sql.complaints, "_log", log)
    return log


def insert(value: str) -> Operation[int]:
    """Insert a value; gives which transaction that was in."""

    def operation(transaction: Transaction) -> int:
        transaction.connection.exec_driver_sql("INSERT INTO t VALUES (?)", (value,))
        return id(transaction)

    return operation


def then_raise(operation: Operation[int], error: Exception) -> Operation[int]:
    def raising(transaction: Transaction) -> int:
        operation(transaction)
        raise error

    return raising


def values(transaction: Transaction) -> set[str]:
    return {row[0] for row in transaction.connection.exec_driver_sql("SELECT x FROM t")}


@asynccontextmanager
async def busy_writer(access: Access) -> AsyncIterator[Callable[[], None]]:
    """The writer is in the middle of a transaction until what this gives is called."""
    reached, may_go_on = threading.Event(), threading.Event()

    def block(_: Transaction) -> None:
        reached.set()
        assert may_go_on.wait(20)

    blocking = await access.submit(block)
    await until(reached.is_set, "the writer is busy")
    try:
        yield may_go_on.set
    finally:
        may_go_on.set()
        await blocking


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process, as it were, is writing all the time."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


async def test_what_gathers_during_a_transaction_shares_the_next_one(access: Access) -> None:
    async with busy_writer(access) as release:
        waiting = [await access.submit(insert(str(number))) for number in range(100)]
        release()
        transactions = await asyncio.gather(*waiting)
    assert len(set(transactions)) == 1
    assert await access.read(values) == {str(number) for number in range(100)}


async def test_what_is_urgent_waits_for_the_operation_that_is_under_way_alone(access: Access) -> None:
    order: list[str] = []

    def note(name: str) -> Operation[int]:
        def operation(transaction: Transaction) -> int:
            order.append(name)
            return transaction.now

        return operation

    reached, may_go_on = threading.Event(), threading.Event()

    def block(_: Transaction) -> None:
        order.append("under way")
        reached.set()
        assert may_go_on.wait(20)

    async with busy_writer(access) as release:
        under_way = await access.submit(block)
        waiting = [await access.submit(note(name)) for name in ("of the same transaction", "last")]
        release()
        await until(reached.is_set, "the first of them is under way")
        urgent = await access.submit(note("urgent"), urgent=True)
        may_go_on.set()
        await asyncio.gather(under_way, urgent, *waiting)
    assert order == ["under way", "urgent", "of the same transaction", "last"]


@pytest.mark.contract("F5")
async def test_no_transaction_holds_others_up_for_long(access: Access, tmp_path: Path) -> None:
    done: list[Transaction] = []

    def slow(transaction: Transaction) -> None:
        time.sleep(0.05)
        done.append(transaction)

    def take_turns() -> int:
        """How many of ours are done when another process, which asks again and again, has had three turns to write."""
        with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None, timeout=0.005)) as other:
            for _ in range(3):
                while not other.in_transaction:
                    with suppress(sqlite3.OperationalError):
                        other.execute("BEGIN IMMEDIATE")
                other.execute("ROLLBACK")
                time.sleep(0.05)
        return len(done)

    waiting = [await access.submit(slow) for _ in range(100)]
    assert await asyncio.to_thread(take_turns) < 100
    await asyncio.gather(*waiting)


async def test_one_that_comes_alone_does_not_wait_for_others(access: Access) -> None:
    async with asyncio.timeout(10):
        for number in range(3):
            await access.write(insert(str(number)))
            assert str(number) in await access.read(values)


async def test_one_operations_refusal_undoes_it_and_none_of_the_others(access: Access) -> None:
    async with busy_writer(access) as release:
        before = await access.submit(insert("before"))
        refused = await access.submit(then_raise(insert("refused"), Fenced()))
        after = await access.submit(insert("after"))
        release()
        done = await asyncio.gather(before, refused, after, return_exceptions=True)
    assert done[0] == done[2]
    assert isinstance(done[1], Fenced)
    assert await access.read(values) == {"before", "after"}


@pytest.mark.parametrize("what", ["duplicate", "surrogate", "bug"])
async def test_what_is_wrong_with_one_operation_alone_fails_it_alone(access: Access, what: str) -> None:
    wrong = {
        "duplicate": insert("before"),
        "surrogate": insert("\ud800"),
        "bug": then_raise(insert("x"), ZeroDivisionError()),
    }[what]
    with structlog.testing.capture_logs() as logs:
        async with busy_writer(access) as release:
            before = await access.submit(insert("before"))
            failed = await access.submit(wrong)
            after = await access.submit(insert("after"))
            release()
            done = await asyncio.gather(before, failed, after, return_exceptions=True)
    assert done[0] == done[2]
    assert isinstance(done[1], JournalFailed)
    assert [log["event"] for log in logs] == ["journal operation failed"]
    assert await access.read(values) == {"before", "after"}


@pytest.mark.contract("C17")
async def test_a_database_that_cannot_be_written_fails_the_transaction_and_the_next_one_tries_again(
    access: Access, tmp_path: Path, complaints: CapturingLogger
) -> None:
    with locked(tmp_path / "x.db"):
        async with asyncio.timeout(20):
            failed = await access.submit(insert("secret 1")), await access.submit(insert("secret 2"))
            done = await asyncio.gather(*failed, return_exceptions=True)
    assert [type(error) for error in done] == [JournalFailed, JournalFailed]
    (told,) = complaints.calls  # also if the first one was alone in its transaction
    assert "locked" in told.kwargs["why"]
    assert "secret" not in str(told)
    await access.write(insert("next"))
    await access.write(insert("and another"))
    assert [call.args[0] for call in complaints.calls[1:]] == ["journal transaction succeeds again"]
    assert await access.read(values) == {"next", "and another"}


@pytest.mark.contract("C17")
async def test_reads_that_fail_again_and_again_are_told_once_and_that_they_succeed_again(
    access: Access, complaints: CapturingLogger
) -> None:
    for _ in range(3):
        with pytest.raises(JournalFailed):
            await access.read(lambda transaction: transaction.connection.exec_driver_sql("SELECT x FROM nowhere"))
    await access.read(values)
    assert [(call.args[0], call.kwargs["failures"]) for call in complaints.calls] == [
        ("journal read failed", 1),
        ("journal read succeeds again", 3),
    ]


@pytest.mark.contract("C17")
async def test_a_full_database_fails_the_whole_transaction_and_says_so_once(access: Access) -> None:
    def fill(transaction: Transaction) -> None:
        connection = transaction.connection
        connection.exec_driver_sql("PRAGMA max_page_count = 1")
        connection.exec_driver_sql("INSERT INTO t VALUES (?)", ("secret" * 100_000,))

    with structlog.testing.capture_logs() as logs:
        async with busy_writer(access) as release:
            before = await access.submit(insert("before"))
            full = await access.submit(fill)
            after = await access.submit(insert("after"))
            release()
            done = await asyncio.gather(before, full, after, return_exceptions=True)
    assert [type(error) for error in done] == [JournalFailed] * 3
    assert [(log["event"], log["operations"]) for log in logs] == [("journal transaction failed", 3)]
    assert "full" in logs[0]["why"]
    assert "secret" not in str(logs)
    await access.write(insert("on a fresh connection"))
    assert await access.read(values) == {"on a fresh connection"}


async def test_reads_do_not_wait_for_writes(access: Access) -> None:
    await access.write(insert("there"))
    async with busy_writer(access), asyncio.timeout(10):
        assert await access.read(values) == {"there"}


@pytest.mark.contract("C17")
async def test_a_read_that_fails_is_told_as_the_journals_failure(access: Access) -> None:
    with structlog.testing.capture_logs() as logs, pytest.raises(JournalFailed):
        await access.read(lambda transaction: transaction.connection.exec_driver_sql("SELECT secret FROM nowhere"))
    assert [log["event"] for log in logs] == ["journal read failed"]
    assert await access.read(values) == set()


async def test_writes_beyond_the_queues_bytes_wait_for_room(database: Database) -> None:
    async with Access(database, queue_bytes=1_000) as access:
        async with busy_writer(access) as release:
            first = await access.submit(insert("first"), 600)
            second = asyncio.create_task(access.submit(insert("second"), 600))
            third = asyncio.create_task(access.submit(insert("third"), 600))
            await access.read(values)  # time for them to come as far as they can
            assert not second.done()
            third.cancel()
            release()
            await asyncio.gather(first, await second)
        assert await access.read(values) == {"first", "second"}


async def test_a_cancelled_caller_harms_nobody(access: Access) -> None:
    async with busy_writer(access) as release:
        cancelled = asyncio.create_task(access.write(insert("cancelled")))
        await asyncio.sleep(0)
        other = asyncio.create_task(access.write(insert("other")))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        release()
        await other
    assert cancelled.cancelled()
    assert await access.read(values) == {"cancelled", "other"}


async def test_closing_waits_for_what_was_submitted_and_takes_no_more(database: Database, tmp_path: Path) -> None:
    async with Access(database) as access:
        submitted = [await access.submit(insert(str(number))) for number in range(500)]
    assert all(it.done() and not it.exception() for it in submitted)
    for late in (access.write(insert("late")), access.read(values)):
        with pytest.raises(JournalFailed, match="closed"):
            await late
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        assert connection.execute("SELECT COUNT(*) FROM t").fetchone() == (500,)


@pytest.mark.contract("F6")
async def test_commits_are_synchronized_with_the_disk(access: Access) -> None:
    def settings(transaction: Transaction) -> tuple[object, ...]:
        pragmas = ("journal_mode", "synchronous")
        return tuple(transaction.connection.exec_driver_sql(f"PRAGMA {it}").scalar() for it in pragmas)

    full = 2
    assert await access.write(settings) == ("wal", full)


@pytest.mark.contract("C17", "C19")
async def test_a_file_that_was_deleted_or_replaced_is_neither_written_nor_read(access: Access, tmp_path: Path) -> None:
    await access.write(insert("a"))
    path = tmp_path / "x.db"
    path.rename(tmp_path / "moved.db")
    for _ in range(2):  # not there, and another one
        with pytest.raises(JournalFailed):
            await access.write(insert("b"))
        with pytest.raises(JournalFailed):
            await access.read(values)
        path.touch()
    (tmp_path / "moved.db").rename(path)
    await access.write(insert("c"))
    assert await access.read(values) == {"a", "c"}
