"""A database of PostgreSQL: a schema of its own in the one that the address names, so that services may share it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.schema import CreateSchema

from fanfold.sql.database import BUSY_SECONDS, READERS, Contents, Database, exclude

CONNECT_SECONDS = 5

_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

_SESSION: dict[str, str] = {
    "synchronous_commit": "on",  # whatever the server's default is: what is told is durable
    "lock_timeout": f"{BUSY_SECONDS:g}s",
    # What a service locked that froze or was cut off is free again long before its leases are over.
    "idle_in_transaction_session_timeout": f"{BUSY_SECONDS:g}s",
    "tcp_user_timeout": "10s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}
_CONNECT: dict[str, Any] = {
    "connect_timeout": CONNECT_SECONDS,
    "tcp_user_timeout": 10_000,  # milliseconds
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}

_LOCK = "SELECT pg_advisory_lock(hashtext(current_setting('search_path')), 1)"  # until the connection ends


def postgres_database(
    url: str, contents: Contents, *, password_file: Path | None = None, alone: bool = False
) -> Database:
    """The database at an address of PostgreSQL; its schema is made if it is not there.

    With `alone`, one process at a time can write: its connection for that holds a lock as long as it lasts.

    Raises:
        OSError: the password's file cannot be read.
        sqlalchemy.exc.DBAPIError: the database cannot be reached, or another process has it alone.
        ModuleNotFoundError: the driver is not installed (extra `postgres`).
    """
    schema = f"fanfold_{contents.name.replace(' ', '_')}"
    address = make_url(url).set(drivername="postgresql+psycopg")
    if password_file is not None:
        address = address.set(password=password_file.read_text().strip())
    writer = _engine(address, schema, 1, [_LOCK] if alone else [])
    reader = _engine(address, schema, READERS).execution_options(
        isolation_level="REPEATABLE READ", postgresql_readonly=True
    )
    database = Database(writer, reader, address.render_as_string(hide_password=True), contents, _NOW)
    try:
        with writer.begin() as connection:
            exclude(connection)
            if not connection.dialect.has_schema(connection, schema):
                connection.execute(CreateSchema(schema))
        if alone:
            _hold(writer)
    except BaseException:
        database.close()
        raise
    return database


def _hold(writer: Engine) -> None:
    """Have no connection made anew once another process has had the database: what this one remembers is old then."""
    with writer.begin() as connection:
        connection.exec_driver_sql("CREATE SEQUENCE IF NOT EXISTS holders")
        # A server that crashed has its sequences go on some numbers further, unless their last one was set.
        ours = connection.exec_driver_sql("SELECT setval('holders', nextval('holders'))").scalar_one()

    @event.listens_for(writer, "connect")
    def refuse_after_others(connection: Any, _record: object) -> None:
        (last,) = connection.execute("SELECT last_value FROM holders").fetchone()
        connection.rollback()
        if last != ours:
            connection.close()
            raise OSError("another process has had it meanwhile; start the service again")


def _engine(address: URL, schema: str, connections: int, prologue: Sequence[str] = ()) -> Engine:
    engine = create_engine(
        address,
        connect_args=_CONNECT | {"application_name": schema},
        pool_size=connections,
        max_overflow=0,
        pool_pre_ping=True,
        hide_parameters=True,
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        # Not in the address's options, which proxies refuse and the configuration may use.
        settings = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in _SESSION.items())
        connection.autocommit = True
        for statement in (f"SELECT set_config('search_path', '{schema}', false), {settings}", *prologue):
            connection.execute(statement)
        connection.autocommit = False

    return engine
