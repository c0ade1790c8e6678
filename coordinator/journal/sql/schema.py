"""Brings a database's schema up to date."""

from __future__ import annotations

from importlib.resources import as_file, files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from coordinator.journal import migrations
from coordinator.journal.sql.database import Database
from fanfold.errors import FailedPrecondition


def migrate(database: Database) -> None:
    """Make or change the tables to what this release knows, in one transaction, while all other writers wait.

    Raises:
        FailedPrecondition: a newer release has made the tables; nothing is changed.
        sqlalchemy.exc.DBAPIError: the database cannot be read or written.
    """
    with as_file(files(migrations)) as folder, database.writer.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(folder))
        config.attributes["connection"] = connection
        _refuse_newer(connection, ScriptDirectory.from_config(config), database.where)
        command.upgrade(config, "head")


def _refuse_newer(connection: Connection, script: ScriptDirectory, where: str) -> None:
    found = MigrationContext.configure(connection).get_current_revision()
    known = {step.revision for step in script.walk_revisions()}
    if found is not None and found not in known:
        raise FailedPrecondition(
            f"the journal in {where} is of a newer release (schema {found}; this one knows {script.get_current_head()})"
        )
