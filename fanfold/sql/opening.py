"""Opens a service's database, where its configuration says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from sqlalchemy.exc import ArgumentError, DBAPIError

from fanfold.errors import FailedPrecondition
from fanfold.sql.database import Contents, Database, words_of
from fanfold.sql.metrics import DatabaseCounts
from fanfold.sql.migration import migrate
from fanfold.sql.postgres import postgres_database
from fanfold.sql.settings import DatabaseSettings
from fanfold.sql.sqlite import sqlite_database

_LOCK_NOT_AVAILABLE = "55P03"


def open_database(
    settings: DatabaseSettings,
    contents: Contents,
    steps: ModuleType,
    schema: str,
    *,
    counts: DatabaseCounts | None = None,
    exclusive: bool = False,
) -> Database:
    """The database in a file or at an address, made or brought up to date first; blocks.

    With `exclusive`, one transaction at a time writes to it, in all processes, also where it would allow more. `counts`
    is what its writer counts with.

    Raises:
        FailedPrecondition: it cannot be opened, or a newer release has written it; says why.
    """
    if settings.url:
        where = settings.url

        def make() -> Database:
            password_file = settings.password_file
            return postgres_database(settings.url, contents, password_file=password_file, exclusive=exclusive)
    else:
        where = settings.path

        def make() -> Database:
            return sqlite_database(Path(settings.path), contents)

    database = _opened(make, where, contents, steps, schema)
    return database if counts is None else replace(database, counts=counts)


def _opened(make: Callable[[], Database], where: str, contents: Contents, steps: ModuleType, schema: str) -> Database:
    try:
        database = make()
        try:
            migrate(database, steps, schema)
        except BaseException:
            database.close()
            raise
    except (OSError, DBAPIError, ArgumentError, ModuleNotFoundError) as error:
        raise FailedPrecondition(f"the {contents.name} {where} cannot be opened: {_why(error)}") from None
    return database


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, ModuleNotFoundError):
        return "its driver is not installed: pip install 'fanfold[postgres]'"
    if getattr(getattr(error, "orig", None), "sqlstate", None) == _LOCK_NOT_AVAILABLE:
        return "another process has it"
    return words_of(error)
