"""A database of PostgreSQL: a schema of its own in the one that the address names, so that services may share it."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.schema import CreateSchema

from fanfold.errors import FailedPrecondition
from fanfold.sql.database import ANSWER_SECONDS, BUSY_SECONDS, READERS, Contents, Database, exclude, words_of

CONNECT_SECONDS = 5

ENCODING = "UTF8"
"""The one in which a database can keep every text."""

_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

_SESSION: dict[str, str] = {
    # Whatever the defaults of server, database and role are: what is told is durable; who waited for a lock then sees
    # what was done before it; and connections are kept for whenever they are needed.
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "idle_session_timeout": "0",
    "lock_timeout": f"{BUSY_SECONDS:g}s",
    # What a service locked that froze or was cut off is free again long before its leases are over.
    "idle_in_transaction_session_timeout": f"{BUSY_SECONDS:g}s",
    "tcp_user_timeout": "10s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}
_CONNECT: dict[str, Any] = {
    "client_encoding": ENCODING,  # whatever PGCLIENTENCODING says
    "connect_timeout": CONNECT_SECONDS,
    "tcp_user_timeout": 10_000,  # milliseconds
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}


def postgres_database(
    url: str, contents: Contents, *, password_file: Path | None = None, exclusive: bool = False
) -> Database:
    """The database at an address of PostgreSQL; its schema is made if it is not there.

    With `exclusive`, a transaction that writes excludes all others from its beginning, as in SQLite.

    Raises:
        FailedPrecondition: it cannot keep every text.
        OSError: the password's file cannot be read.
        sqlalchemy.exc.DBAPIError: the database cannot be reached.
        ModuleNotFoundError: the driver is not installed (extra `postgres`).
    """
    schema = f"fanfold_{contents.name.replace(' ', '_')}"
    address = make_url(url).set(drivername="postgresql+psycopg")
    if password_file is not None:
        address = address.set(password=password_file.read_text().strip())
    writer = _engine(address, schema, 1, ANSWER_SECONDS)
    reader = _engine(address, schema, READERS, ANSWER_SECONDS).execution_options(
        isolation_level="REPEATABLE READ", postgresql_readonly=True
    )
    changer = _engine(address, schema, 1, math.inf)
    if exclusive:
        event.listen(writer, "begin", exclude)
    notices = partial(_notices, address, schema, contents)
    where = address.render_as_string(hide_password=True)
    database = Database(writer, reader, changer, where, contents, _NOW, notices)
    try:
        with writer.begin() as connection:
            _refuse_other_encoding(connection, database)
            exclude(connection)
            if not connection.dialect.has_schema(connection, schema):
                connection.execute(CreateSchema(schema))
    except BaseException:
        database.close()
        raise
    return database


def _refuse_other_encoding(connection: Connection, database: Database) -> None:
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding != ENCODING:
        why = f"its encoding is {encoding} and has to be {ENCODING}"
        raise FailedPrecondition(f"the {database.contents.name} {database.where} cannot be used: {why}")


async def _notices(address: URL, schema: str, contents: Contents) -> AsyncGenerator[str, None]:
    """What is told on the schema's channel, over a connection of its own (Database.notices)."""
    from psycopg import AsyncConnection, Error, sql  # noqa: PLC0415 - an extra

    _, where = address.get_dialect()().create_connect_args(address)
    connect = {**where, **_CONNECT, "application_name": f"{schema} listener"}
    try:
        async with await AsyncConnection.connect(**connect, autocommit=True) as connection:
            await connection.execute("SET idle_session_timeout = 0")
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(schema)))
            yield ""
            async for notice in connection.notifies():
                yield notice.payload
    except (Error, OSError) as error:
        raise contents.failed(f"the {contents.name} cannot be listened to: {words_of(error)}") from None


def _engine(address: URL, schema: str, connections: int, patience: float) -> Engine:
    from fanfold.sql.patience import connect_patiently  # noqa: PLC0415 - needs the extra

    engine = create_engine(
        address,
        connect_args=_CONNECT | {"application_name": schema},
        pool_size=connections,
        max_overflow=0,
        pool_pre_ping=True,
        hide_parameters=True,
    )
    connect_patiently(engine, patience)
    logging.getLogger("sqlalchemy.pool.impl.QueuePool").addFilter(_is_news)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        # Not in the address's options, which proxies refuse and the configuration may use.
        settings = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in _SESSION.items())
        connection.autocommit = True
        connection.execute(f"SELECT set_config('search_path', '{schema}', false), {settings}")
        connection.autocommit = False

    return engine


def _is_news(record: logging.LogRecord) -> bool:
    """Whether it is not just that a connection was lost, which whoever used it is told, and tells without a trace."""
    from psycopg import OperationalError  # noqa: PLC0415 - an extra

    return record.exc_info is None or not isinstance(record.exc_info[1], OperationalError)
