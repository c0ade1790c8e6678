"""Opens a service's database in a file."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from sqlalchemy.exc import DBAPIError

from fanfold.errors import FailedPrecondition
from fanfold.sql.database import Contents, Database, sqlite_database, words_of
from fanfold.sql.migration import migrate


def open_sqlite(path: Path, contents: Contents, steps: ModuleType, schema: str) -> Database:
    """The database in a file, made or brought up to date first; blocks.

    Raises:
        FailedPrecondition: it cannot be opened, or a newer release has written it; says why.
    """
    try:
        database = sqlite_database(path, contents)
        try:
            migrate(database, steps, schema)
        except BaseException:
            database.close()
            raise
    except OSError as error:
        raise FailedPrecondition(f"the {contents.name} {path} cannot be opened: {error.strerror}") from None
    except DBAPIError as error:
        raise FailedPrecondition(f"the {contents.name} {path} cannot be opened: {words_of(error)}") from None
    return database
