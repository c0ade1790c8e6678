"""A copy of a database of SQLite, and of the files beside it, made while services use them (C19)."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from fanfold.errors import FailedPrecondition, InvalidArgument

OBJECTS_SUFFIX = ".objects"
"""Ends the name of the folder beside a database that has what is too large for it."""


def back_up(database: Path, folder: Path) -> int:
    """Copy a database and its large payloads into `folder`, which is made if it is not there; blocks.

    The copy of the database is what was committed at one moment, and is put in the place of an earlier copy when it is
    whole. Payloads never change, so those that an earlier copy has are not copied again. They are written before the
    rows that name them and deleted after those, so a copy of the database has all of them if they are copied after it,
    but for those of runs that are deleted meanwhile.

    Returns:
        How many payloads the copy has.

    Raises:
        InvalidArgument: there is no such database.
        FailedPrecondition: it cannot be read, or the copy cannot be written, or is damaged; says why.
    """
    if not database.is_file():
        raise InvalidArgument(f"{database}: there is no such database")
    objects = database.with_name(database.name + OBJECTS_SUFFIX)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.samefile(database.parent):
            raise InvalidArgument(f"{folder}: the copy must be in another folder")
        before = _names(objects)
        _copy_database(database, folder / database.name)
        return _copy_objects(objects, folder / objects.name, before)
    except (OSError, sqlite3.Error) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise FailedPrecondition(f"{database} cannot be copied into {folder}: {why}") from None


def _copy_database(database: Path, copy: Path) -> None:
    part = copy.with_name(f"{copy.name}.part")
    part.unlink(missing_ok=True)
    try:
        os.close(os.open(part, os.O_CREAT | os.O_WRONLY, 0o600))
        _write_copy(database, part)
        part.replace(copy)
    finally:
        part.unlink(missing_ok=True)  # what is no whole copy
    _synchronize(copy.parent)


def _write_copy(database: Path, part: Path) -> None:
    with (
        closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(part)) as target,
    ):
        source.backup(target)  # all pages at once: of one moment, and in no writer's way
        target.execute("PRAGMA journal_mode = DELETE")  # so that it is one file
        (found,) = target.execute("PRAGMA quick_check").fetchone()
        if found != "ok":
            raise FailedPrecondition(f"{database} is damaged: {found}")
    _synchronize(part)


def _copy_objects(objects: Path, copies: Path, before: set[Path]) -> int:
    now, had = _names(objects), _names(copies)
    for name in now - had:
        target = copies / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.part")
        with suppress(FileNotFoundError):  # deleted meanwhile
            shutil.copyfile(objects / name, part)
            _synchronize(part)
            part.replace(target)
    for name in had - now - before:  # which no row has named that was copied
        (copies / name).unlink()
    return len(_names(copies))


def _names(folder: Path) -> set[Path]:
    """The files of a folder and of those in it, as paths from there."""
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


def _synchronize(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
