"""A database in a file of SQLite."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import OperationalError

from fanfold.sql.database import BUSY_SECONDS, READERS, Contents, Database

_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",  # what a commit has written survives a power cut
    "PRAGMA journal_size_limit = 67108864",
)
_WRITER_PRAGMAS = (*_PRAGMAS, "PRAGMA busy_timeout = 5")
_NOW = "SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000"


def sqlite_database(path: Path, contents: Contents, *, busy_seconds: float = BUSY_SECONDS) -> Database:
    """The database in a file, which is made, readable for this user alone, if it is not there. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    file = os.fstat(descriptor)
    os.close(descriptor)
    writer = _engine(path, 1, busy_seconds, _WRITER_PRAGMAS)
    reader = _engine(path, READERS, busy_seconds, _PRAGMAS)

    @event.listens_for(writer, "do_connect")
    @event.listens_for(reader, "do_connect")
    def refuse_other_file(*_: object) -> None:
        # SQLite goes on with a deleted file, whose contents nobody would find again (C19).
        if not path.exists() or not os.path.samestat(path.stat(), file):
            raise OSError("the file was deleted or replaced since it was opened; start the service again")

    @event.listens_for(writer, "begin")
    def begin_writing(connection: Connection) -> None:
        refuse_other_file()
        _begin_immediate(connection, busy_seconds)

    @event.listens_for(reader, "begin")
    def begin_reading(connection: Connection) -> None:
        refuse_other_file()
        connection.exec_driver_sql("BEGIN")

    return Database(writer, reader, writer, str(path), contents, _NOW)


def _engine(path: Path, connections: int, busy_seconds: float, pragmas: Sequence[str]) -> Engine:
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        # No isolation level: the driver's own BEGIN would come late, and lock nothing.
        connect_args={"timeout": busy_seconds, "check_same_thread": False, "isolation_level": None},
        pool_size=connections,
        max_overflow=0,
        hide_parameters=True,
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        for pragma in pragmas:
            connection.execute(pragma)

    return engine


def _begin_immediate(connection: Connection, busy_seconds: float) -> None:
    """Begin as the only writer. Asks again and again: SQLite itself would wait longer and longer, which is unfair."""
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        except OperationalError as error:
            is_busy = isinstance(error.orig, sqlite3.Error) and error.orig.sqlite_errorname.startswith("SQLITE_BUSY")
            if not is_busy or time.monotonic() > deadline:
                raise
        else:
            return
