"""What differs between databases: how they are opened and locked, and what time it is there."""

from __future__ import annotations

import os
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, OperationalError

READERS = 4
"""Connections that read at the same time, beside the one that writes."""

BUSY_SECONDS = 5.0
"""Longest wait for another process that is writing."""

_SQLITE_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",  # what a commit has written survives a power cut
    "PRAGMA journal_size_limit = 67108864",
    # SQLite's own waiting gets slower and slower, which is unfair to whoever waits; so it is asked again and again.
    "PRAGMA busy_timeout = 5",
)
_SQLITE_NOW = "SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000"


@dataclass(frozen=True, slots=True)
class Database:
    """A database. Transactions of `writer` exclude one another from their beginning, in all processes.

    `where` names it in messages; `now` gives its time in microseconds since 1970.
    """

    writer: Engine
    reader: Engine
    where: str
    _now: str

    def now(self, connection: Connection) -> int:
        """The database's time."""
        return int(connection.exec_driver_sql(self._now).scalar_one())

    def close(self) -> None:
        """Close all connections."""
        self.writer.dispose()
        self.reader.dispose()


def sqlite_database(path: Path, busy_seconds: float = BUSY_SECONDS) -> Database:
    """The database in a file, which is made, readable for this user alone, if it is not there. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    writer = _sqlite_engine(path, connections=1, begin="BEGIN IMMEDIATE", busy_seconds=busy_seconds)
    reader = _sqlite_engine(path, connections=READERS, begin="BEGIN", busy_seconds=busy_seconds)
    return Database(writer, reader, str(path), _SQLITE_NOW)


def words_of(error: Exception) -> str:
    """What to log of an error: what the driver says, without the statement and its values."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    lines = str(cause).splitlines()
    return f"{type(cause).__name__}: {lines[0] if lines else ''}"


def _sqlite_engine(path: Path, *, connections: int, begin: str, busy_seconds: float) -> Engine:
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"timeout": busy_seconds, "check_same_thread": False, "isolation_level": None},
        pool_size=connections,
        max_overflow=0,
        hide_parameters=True,
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        for pragma in _SQLITE_PRAGMAS:
            connection.execute(pragma)

    @event.listens_for(engine, "begin")
    def begin_transaction(connection: Connection) -> None:
        """The driver's own BEGIN would come late, and lock nothing."""
        deadline = time.monotonic() + busy_seconds
        while True:
            try:
                connection.exec_driver_sql(begin)
            except OperationalError as error:
                is_busy = getattr(error.orig, "sqlite_errorname", "").startswith("SQLITE_BUSY")
                if not is_busy or time.monotonic() > deadline:
                    raise
            else:
                return

    return engine
