"""What can be said against the settings of a database without opening it; nothing is made or written."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import make_url

from fanfold.errors import FieldViolation
from fanfold.sql.settings import DatabaseSettings

_SQLITE = b"SQLite format 3\0"
"""What a database begins with; a new one is empty."""


_WHOLE_NUMBERS = frozenset(
    {"connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout"}
)
"""Options that the driver looks at only when it has connected."""

_PLACES = frozenset({"host", "hostaddr", "port", "service", "servicefile"})
"""Options that say where the database is, which is not asked here."""


def troubles_of_database(settings: DatabaseSettings, section: str) -> Iterator[FieldViolation]:
    """What keeps it from being opened, so far as that can be told from here. `section` holds it."""
    if settings.password_file is not None:
        yield from _troubles_of_password(settings.password_file, f"{section}.password_file")
    if settings.url:
        yield from _troubles_of_url(settings.url, f"{section}.url")
    if settings.path:
        yield from _troubles_of_file(Path(settings.path), f"{section}.path")


def _troubles_of_password(file: Path, field: str) -> Iterator[FieldViolation]:
    try:
        if not file.read_bytes().strip():
            yield FieldViolation(field, f"{file}: is empty")
    except OSError as error:
        yield FieldViolation(field, f"{file}: {error.strerror}")


def _troubles_of_url(url: str, field: str) -> Iterator[FieldViolation]:
    if importlib.util.find_spec("psycopg") is None:
        yield FieldViolation(field, "its driver is not installed: pip install 'fanfold[postgres]'")
        return
    for option, value in make_url(url).normalized_query.items():
        if why := _trouble_of_option(option, value[-1]):
            yield FieldViolation(field, why)


def _trouble_of_option(option: str, value: str) -> str:
    """What the driver has against an option, asked for a database where there can be none; empty if nothing."""
    from psycopg import ProgrammingError  # noqa: PLC0415 - an extra
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415
    from psycopg.pq import PGconn  # noqa: PLC0415

    try:
        make_conninfo(**{option: "1"})
    except ProgrammingError:
        return f'invalid connection option "{option}"'
    if option in _WHOLE_NUMBERS and not value.strip().lstrip("+-").isdecimal():
        return f'invalid {option} value: "{value}"'
    if option in _PLACES:
        return ""
    nowhere = {"host": os.devnull, "hostaddr": "", option: value}
    said = PGconn.connect_start(make_conninfo(**nowhere).encode()).error_message.decode(errors="replace").strip()
    return said if said.startswith("invalid") and f'"{value}"' in said else ""


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
