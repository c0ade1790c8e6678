"""Databases of PostgreSQL whose defaults are not those that a service needs."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import make_url

from coordinator.journal.sql.schema import JOURNAL
from fanfold.errors import FailedPrecondition
from fanfold.sql.access import Access
from fanfold.sql.database import exclude
from fanfold.sql.postgres import postgres_database
from fanfold.sql.writer import Transaction
from support.journals import postgres_journal
from support.mesh import until
from support.postgres import Server, execute


def set_default(url: str, name: str, value: str) -> None:
    execute(url, f"ALTER DATABASE {make_url(url).database} SET {name} TO '{value}'")


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_who_has_waited_for_another_transaction_sees_what_it_did(url: str, isolation: str) -> None:
    set_default(url, "default_transaction_isolation", isolation)
    one = postgres_database(url, JOURNAL)
    execute(url, "CREATE TABLE fanfold_journal.t (x int)")

    def count_alone(transaction: Transaction) -> int:
        exclude(transaction.connection)
        return int(transaction.connection.exec_driver_sql("SELECT count(*) FROM t").scalar_one())

    def somebody_waits() -> bool:
        return bool(execute(url, "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))

    async with Access(postgres_database(url, JOURNAL)) as other:
        with one.writer.begin() as connection:
            exclude(connection)
            counting = asyncio.create_task(other.write(count_alone))
            await until(somebody_waits, "the other one waits")
            connection.exec_driver_sql("INSERT INTO t VALUES (1)")
        assert await counting == 1
    one.close()


@pytest.mark.parametrize(
    ("name", "default", "held"),
    [("idle_session_timeout", "1h", "0"), ("client_encoding", "LATIN1", "UTF8"), ("synchronous_commit", "off", "on")],
)
async def test_sessions_are_as_a_service_needs_them(url: str, name: str, default: str, held: str) -> None:
    set_default(url, name, default)

    def show(transaction: Transaction) -> str:
        return str(transaction.connection.exec_driver_sql(f"SHOW {name}").scalar_one())

    async with Access(postgres_database(url, JOURNAL)) as access:
        assert (await access.write(show), await access.read(show)) == (held, held)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_that_cannot_keep_every_text_is_refused(
    postgres: Server, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres.named_database(f"ENCODING '{encoding}' TEMPLATE template0") as name, monkeypatch.context() as patched:
        patched.setenv("PGCLIENTENCODING", encoding)
        with pytest.raises(FailedPrecondition, match=f"its encoding is {encoding} and has to be UTF8"):
            async with postgres_journal(postgres.url(name)):
                pass
