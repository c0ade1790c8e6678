"""Whether SQLite keeps what it is given where databases are to be."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def write_and_read(path: Path) -> str:
    """Write to a new database as services do, and read it again; what went wrong, or nothing."""
    try:
        with closing(sqlite3.connect(path)) as database:
            (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
            database.execute("PRAGMA synchronous = FULL")
            with database:
                database.execute("CREATE TABLE tried (value TEXT)")
                database.execute("INSERT INTO tried VALUES ('kept')")
        with closing(sqlite3.connect(path)) as database:
            kept = database.execute("SELECT value FROM tried").fetchall()
    except sqlite3.Error as error:
        return str(error)
    if mode != "wal":
        return f"its journal cannot be a write-ahead log, as on file systems of networks; it is {mode!r}"
    return "" if kept == [("kept",)] else "what was written is not there"
