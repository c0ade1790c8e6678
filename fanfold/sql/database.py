"""A database as services see it; `sqlite` and `postgres` open one each."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from fanfold.errors import Unavailable
from fanfold.sql.metrics import DatabaseCounts

READERS = 4
"""Connections that read at the same time, beside the one that writes."""

BUSY_SECONDS = 5.0
"""Longest wait for another process that is writing."""

ANSWER_SECONDS = 15.0
"""Longest silence of a server that was asked something; what it is asked takes less, and waits for locks less long."""

_CONFLICTS = frozenset({"40001", "40P01"})  # serialization failure, deadlock


@dataclass(frozen=True, slots=True)
class Contents:
    """What a database is for: its `name` in messages and logs, and the error that tells that it failed.

    A `table` that every release has tells it from others.
    """

    name: str
    failed: type[Unavailable]
    table: str


@dataclass(frozen=True, slots=True)
class Database:
    """A database. Of the transactions of `writer` that touch the same rows, each sees what those before it have done.

    `changer` is for changes of the schema, which may take long. `where` names it in messages; `now` gives its time in
    microseconds since 1970. `notices` gives what processes tell one another through it, until it fails: first an empty
    one, once none is missed any more. It is None where the database carries none.
    """

    writer: Engine
    reader: Engine
    changer: Engine
    where: str
    contents: Contents
    _now: str
    notices: Callable[[], AsyncGenerator[str, None]] | None = None
    counts: DatabaseCounts = field(default_factory=DatabaseCounts)

    def now(self, connection: Connection) -> int:
        """The database's time."""
        return int(connection.exec_driver_sql(self._now).scalar_one())

    def tell(self, connection: Connection, notices: Iterable[str]) -> None:
        """Tell all processes on the database of a transaction, once it has taken effect; nobody where it cannot."""
        if self.notices is not None and (told := sorted(notices)):
            statement = "SELECT pg_notify(current_setting('search_path'), notice) FROM unnest(%s::text[]) AS notice"
            connection.exec_driver_sql(statement, (told,))

    def closed(self) -> Unavailable:
        """The error for whoever comes after it was closed."""
        return self.contents.failed(f"the {self.contents.name} is closed")

    def close(self) -> None:
        """Close all connections."""
        self.writer.dispose()
        self.reader.dispose()
        self.changer.dispose()


def exclude(connection: Connection) -> None:
    """Let no other transaction beyond this point, in any process, until this one ends: what it looks for stays away.

    SQLite's writing transactions exclude one another from their beginning.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext(current_setting('search_path')))")


def is_conflict(error: Exception) -> bool:
    """Whether a transaction was undone for the sake of another one, so that it may well succeed if it is repeated."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in _CONFLICTS


def is_disconnection(error: Exception) -> bool:
    """Whether the connection is of no use any more."""
    return isinstance(error, DBAPIError) and error.connection_invalidated


def words_of(error: Exception) -> str:
    """What to log of an error: what the driver says, without the statement and its values."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    lines = str(cause).splitlines()
    return f"{type(cause).__name__}: {lines[0] if lines else ''}"
