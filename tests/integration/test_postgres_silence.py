"""A server of PostgreSQL that keeps its connections and says nothing: frozen, or waiting for what does not come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from coordinator.config import JournalSettings
from coordinator.journal.journal import JournalFailed
from coordinator.journal.opening import open_journal
from coordinator.journal.sql.schema import JOURNAL
from fanfold.sql.access import Access
from fanfold.sql.metrics import DatabaseCounts
from fanfold.sql.postgres import postgres_database
from fanfold.sql.writer import Transaction
from support.journals import HERE, LONG, eventually, new_run, postgres_journal
from support.mesh import DEADLINE
from support.postgres import Server
from support.proxy import Proxy, proxied

PATIENCE = 2.0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanfold.sql.postgres.ANSWER_SECONDS", PATIENCE)


@asynccontextmanager
async def way_to_database(postgres: Server) -> AsyncIterator[tuple[Proxy, str]]:
    """The way to a new database, and its address by that way."""
    with postgres.named_database() as name:
        async with proxied(str(postgres.socket)) as way:
            yield way, f"postgresql://postgres@{way.address}/{name}"


@pytest.mark.contract("C17", "C42")
async def test_a_server_that_falls_silent_is_an_error_and_is_asked_anew(postgres: Server) -> None:
    counts = DatabaseCounts()
    async with way_to_database(postgres) as (way, url), open_journal(JournalSettings(url=url), counts) as journal:
        assert journal is not None
        await journal.accept(new_run("before"), HERE, LONG)
        assert await journal.find("before") is not None
        way.hold_up()
        async with asyncio.timeout(DEADLINE):
            asked = journal.accept(new_run("meanwhile"), HERE, LONG), journal.find("before")
            told = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each) for each in told] == [JournalFailed, JournalFailed]
        assert (counts.errors, counts.read_errors) == (1, 1)
        way.heal()

        async def writes() -> bool:
            try:
                await journal.accept(new_run("after"), HERE, LONG)
            except JournalFailed:
                return False
            return True

        await eventually(writes, "the journal is written again")
        assert await journal.find("after") is not None


@pytest.mark.contract("C42")
async def test_a_service_ends_though_its_database_is_silent(postgres: Server) -> None:
    async with way_to_database(postgres) as (way, url):
        async with asyncio.timeout(DEADLINE), postgres_journal(url) as journal:
            way.hold_up()
            accepting = asyncio.create_task(journal.accept(new_run("r"), HERE, LONG))
            await asyncio.sleep(0)  # so that it has been asked for
        with pytest.raises(JournalFailed):
            await accepting


async def test_long_answers_and_changes_of_the_schema_may_take_their_time(postgres: Server) -> None:
    def rows(transaction: Transaction) -> int:
        long_ones = "SELECT repeat('x', 100000), pg_sleep(0.25) FROM generate_series(1, 12)"
        return len(transaction.connection.exec_driver_sql(long_ones).all())

    def sleep(transaction: Transaction) -> None:
        transaction.connection.exec_driver_sql(f"SELECT pg_sleep({PATIENCE + 1})")

    with postgres.database() as url:
        database = postgres_database(url, JOURNAL)
        async with Access(database) as access:
            assert await access.read(rows) == 12
            with pytest.raises(JournalFailed):
                await access.write(sleep)
            with database.changer.begin() as connection:
                await asyncio.to_thread(sleep, Transaction(connection, 0))
