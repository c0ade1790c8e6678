"""The command line: `fanfold backup`."""

# ruff: noqa: PLC0415 - each command loads what it needs, so that --help answers at once

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def backup(
    database: Annotated[Path, typer.Argument(metavar="FILE", help="The database of a journal or of jobs.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the copy is to be; an earlier one goes.")],
) -> None:
    """Copy a database of SQLite, and the large payloads beside it, while services use them.

    The copy is what was recorded at one moment. docs/operations.md tells how to
    restore it, and how to do both with PostgreSQL.
    """
    from fanfold.cli.output import tell
    from fanfold.sql.backup import back_up

    payloads = back_up(database, folder)
    tell(f"{folder / database.name}: a copy of {database}" + (f", with {payloads:,} large payloads" * bool(payloads)))
