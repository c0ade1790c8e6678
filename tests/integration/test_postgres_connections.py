"""What PostgreSQL cannot keep, and what happens to connections to it."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import OperationalError

from coordinator.config import JournalSettings
from coordinator.journal.journal import JournalFailed
from coordinator.journal.opening import open_journal
from coordinator.journal.sql.schema import JOURNAL
from fanfold.sql.access import Access
from fanfold.sql.metrics import DatabaseCounts
from fanfold.sql.postgres import postgres_database
from fanfold.sql.writer import Transaction
from support.journals import (
    HERE,
    LONG,
    all_entries,
    append,
    events,
    eventually,
    new_run,
    postgres_journal,
)
from support.postgres import cut_all, running_server


async def test_words_with_a_nul_are_kept_with_its_symbol(url: str) -> None:
    async with postgres_journal(url) as journal:
        await journal.accept(new_run("r"), HERE, LONG)
        await journal.append(append("r", waiting_on="a\0b"))
        kept = await journal.find("r")
        assert kept is not None
        assert kept.run.waiting_on == "a\N{SYMBOL FOR NULL}b"


@pytest.mark.contract("C19")
async def test_what_a_frozen_process_has_locked_is_free_again_after_a_while(url: str) -> None:
    async with postgres_journal(url) as journal:
        await journal.accept(new_run("r"), HERE, LONG)
        frozen = postgres_database(url, JOURNAL)
        with frozen.writer.connect() as connection:
            connection.exec_driver_sql("SELECT 1 FROM runs FOR UPDATE")

            async def writes() -> bool:
                try:
                    await journal.append(append("r", events(1, 1)))
                except JournalFailed:  # it waited for as long as it may
                    return False
                return True

            await eventually(writes, "the run's row is free", 60.0)
            connection.invalidate()
        frozen.close()


async def test_connections_that_are_cut_are_made_anew(url: str) -> None:
    async with postgres_journal(url) as journal:
        await journal.accept(new_run("r"), HERE, LONG)
        cut_all(url)

        async def writes() -> bool:
            try:
                await journal.append(append("r", events(1, 1)))
            except JournalFailed:
                return False
            return True

        assert await journal.find("r") is not None
        await eventually(writes, "the journal is written")
        assert await all_entries(journal, "r") == events(1, 1)


def test_a_connection_that_is_lost_is_an_error_for_whoever_used_it_and_no_trace_in_the_log(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = postgres_database(url, JOURNAL)
    with database.reader.connect() as connection:
        rows = connection.execution_options(stream_results=True).exec_driver_sql("SELECT generate_series(1, 100000)")
        assert rows.fetchone() == (1,)
        cut_all(url)
        rows.close()
        with pytest.raises(OperationalError):
            connection.commit()
    with database.reader.connect() as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
    database.close()
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_connection_that_ended_while_nobody_used_it_fails_nothing(url: str) -> None:
    counts = DatabaseCounts()
    async with open_journal(JournalSettings(url=url), counts) as journal:
        assert journal is not None
        await journal.accept(new_run("r"), HERE, LONG)
        cut_all(url)
        await journal.append(append("r", events(1, 1)))
        assert await all_entries(journal, "r") == events(1, 1)
    assert counts.errors == 0


async def test_a_transaction_whose_connection_ends_is_an_error_and_not_repeated(url: str) -> None:
    began = 0

    def cut_off(transaction: Transaction) -> None:
        nonlocal began
        began += 1
        cut_all(url)
        transaction.connection.exec_driver_sql("SELECT 1")

    async with Access(postgres_database(url, JOURNAL)) as access:
        for _ in range(2):  # by a new connection, and by one that was used before
            with pytest.raises(JournalFailed):
                await access.write(cut_off)
            await access.write(lambda _: None)
    assert began == 2


@pytest.mark.process
@pytest.mark.contract("C17")
async def test_a_server_that_dies_is_an_error_and_what_was_acknowledged_is_there_again() -> None:
    with running_server() as server:
        async with postgres_journal(server.url("postgres")) as journal:
            await journal.accept(new_run("r"), HERE, LONG)
            await journal.append(append("r", events(1, 3)))
            server.stop()
            with pytest.raises(JournalFailed):
                await journal.append(append("r", events(4, 1)))
            with pytest.raises(JournalFailed):
                await journal.find("r")
            server.start()
            assert await all_entries(journal, "r") == events(1, 3)
            await journal.append(append("r", events(4, 1)))
            assert await all_entries(journal, "r") == events(1, 4)
