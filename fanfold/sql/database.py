"""What differs between databases: how they are opened and locked, and what time it is there."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, OperationalError

from fanfold.errors import Unavailable

READERS = 4
"""Connections that read at the same time, beside the one that writes."""

BUSY_SECONDS = 5.0
"""Longest wait for another process that is writing."""

_SQLITE_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",  # what a commit has written survives a power cut
    "PRAGMA journal_size_limit = 67108864",
)
_SQLITE_WRITER_PRAGMAS = (*_SQLITE_PRAGMAS, "PRAGMA busy_timeout = 5")
_SQLITE_NOW = "SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000"


@dataclass(frozen=True, slots=True)
class Contents:
    """What a database is for: its `name` in messages and logs, and the error that tells that it failed."""

    name: str
    failed: type[Unavailable]


@dataclass(frozen=True, slots=True)
class Database:
    """A database. Transactions of `writer` exclude one another from their beginning, in all processes.

    `where` names it in messages; `now` gives its time in microseconds since 1970.
    """

    writer: Engine
    reader: Engine
    where: str
    contents: Contents
    _now: str

    def now(self, connection: Connection) -> int:
        """The database's time."""
        return int(connection.exec_driver_sql(self._now).scalar_one())

    def closed(self) -> Unavailable:
        """The error for whoever comes after it was closed."""
        return self.contents.failed(f"the {self.contents.name} is closed")

    def close(self) -> None:
        """Close all connections."""
        self.writer.dispose()
        self.reader.dispose()


def sqlite_database(path: Path, contents: Contents, *, busy_seconds: float = BUSY_SECONDS) -> Database:
    """The database in a file, which is made, readable for this user alone, if it is not there. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    file = os.fstat(descriptor)
    os.close(descriptor)
    writer = _sqlite_engine(path, 1, busy_seconds, _SQLITE_WRITER_PRAGMAS)
    reader = _sqlite_engine(path, READERS, busy_seconds, _SQLITE_PRAGMAS)

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

    return Database(writer, reader, str(path), contents, _SQLITE_NOW)


def words_of(error: Exception) -> str:
    """What to log of an error: what the driver says, without the statement and its values."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    lines = str(cause).splitlines()
    return f"{type(cause).__name__}: {lines[0] if lines else ''}"


def _sqlite_engine(path: Path, connections: int, busy_seconds: float, pragmas: Sequence[str]) -> Engine:
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
