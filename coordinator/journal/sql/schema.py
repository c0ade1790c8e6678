"""Brings a database's schema up to date."""

from __future__ import annotations

import logging
from importlib.resources import as_file, files

import structlog
from sqlalchemy import Connection, column, inspect, select, table

from coordinator.journal import migrations
from coordinator.journal.sql.database import Database
from fanfold.errors import FailedPrecondition

SCHEMA = "0001"
"""The schema that this release knows: the latest of the migrations."""

_VERSION_TABLE = "alembic_version"

_log = structlog.get_logger(__name__)


def migrate(database: Database) -> None:
    """Make or change the tables to what this release knows, in one transaction, while all other writers wait.

    Raises:
        FailedPrecondition: a newer release has made the tables; nothing is changed.
        sqlalchemy.exc.DBAPIError: the database cannot be read or written.
    """
    with database.writer.begin() as connection:
        found = _schema_of(connection)
        if found != SCHEMA:
            _upgrade(connection, found, database.where)


def _schema_of(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_VERSION_TABLE):
        return None
    return connection.scalar(select(column("version_num")).select_from(table(_VERSION_TABLE)))


def _upgrade(connection: Connection, found: str | None, where: str) -> None:
    # Most starts find all tables as they are to be, and need not load this.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    logging.getLogger("alembic").setLevel(logging.WARNING)  # what it tells below is for its developers
    with as_file(files(migrations)) as folder:
        config = Config()
        config.set_main_option("script_location", str(folder))
        config.attributes["connection"] = connection
        known = {step.revision for step in ScriptDirectory.from_config(config).walk_revisions()}
        if found is not None and found not in known:
            raise FailedPrecondition(
                f"the journal {where} is of a newer release (schema {found}; this one knows {SCHEMA})"
            )
        command.upgrade(config, SCHEMA)
    _log.info("journal migrated", before=found, now=SCHEMA)
