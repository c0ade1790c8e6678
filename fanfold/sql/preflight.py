"""What can be said against the settings of a database without opening it; nothing is made or written."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from fanfold.errors import FieldViolation
from fanfold.sql.settings import DatabaseSettings

_SQLITE = b"SQLite format 3\0"
"""What a database begins with; a new one is empty."""


def troubles_of_database(settings: DatabaseSettings, section: str) -> Iterator[FieldViolation]:
    """What keeps it from being opened, so far as that can be told from here. `section` holds it."""
    if settings.password_file is not None:
        yield from _troubles_of_password(settings.password_file, f"{section}.password_file")
    if settings.url and importlib.util.find_spec("psycopg") is None:
        yield FieldViolation(f"{section}.url", "its driver is not installed: pip install 'fanfold[postgres]'")
    if settings.path:
        yield from _troubles_of_file(Path(settings.path), f"{section}.path")


def _troubles_of_password(file: Path, field: str) -> Iterator[FieldViolation]:
    try:
        if not file.read_bytes().strip():
            yield FieldViolation(field, f"{file}: is empty")
    except OSError as error:
        yield FieldViolation(field, f"{file}: {error.strerror}")


def _troubles_of_file(file: Path, field: str) -> Iterator[FieldViolation]:
    folder = file.parent
    if not folder.is_dir():
        yield FieldViolation(field, f"there is no folder {folder}")
    elif not os.access(folder, os.W_OK | os.X_OK):
        yield FieldViolation(field, f"nothing may be written in {folder}")
    elif file.exists():
        try:
            with file.open("r+b") as database:
                start = database.read(len(_SQLITE))
        except OSError as error:
            yield FieldViolation(field, f"{file}: {error.strerror}")
        else:
            if start not in {b"", _SQLITE}:
                yield FieldViolation(field, f"{file}: is no SQLite database")
