"""Brings a database's schema up to date."""

from __future__ import annotations

import logging
from importlib.resources import as_file, files
from types import ModuleType

import structlog
from sqlalchemy import Connection, MetaData, column, inspect, select, table

from fanfold.errors import FailedPrecondition
from fanfold.sql.database import Database, exclude

_VERSION_TABLE = "alembic_version"

_log = structlog.get_logger(__name__)


def migrate(database: Database, steps: ModuleType, schema: str) -> None:
    """Make or change the tables to `schema`, in one transaction, while all other writers wait.

    `schema` is the latest of the migrations in the package `steps`; a release knows none that is newer.

    Raises:
        FailedPrecondition: a newer release has made the tables, or they are for something else; nothing is changed.
        sqlalchemy.exc.DBAPIError: the database cannot be read or written.
    """
    with database.writer.begin() as connection:
        exclude(connection)
        if _schema_of(connection, database) == schema:
            return
    with database.changer.begin() as connection:
        exclude(connection)
        found = _schema_of(connection, database)  # perhaps another process was quicker
        if found != schema:
            _upgrade(connection, database, steps, found, schema)
    database.changer.dispose()


def run_migrations(metadata: MetaData) -> None:
    """Run migrations on the connection that `migrate` gives, in its transaction: all that their env.py has to do."""
    from alembic import context  # noqa: PLC0415

    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=metadata,
        render_as_batch=True,  # SQLite changes few tables in place
    )
    context.run_migrations()


def _schema_of(connection: Connection, database: Database) -> str | None:
    tables, contents = inspect(connection), database.contents
    if not tables.has_table(_VERSION_TABLE):
        return None
    if not tables.has_table(contents.table):
        raise FailedPrecondition(f"the {contents.name} {database.where} is none: it has something else in it")
    return connection.scalar(select(column("version_num")).select_from(table(_VERSION_TABLE)))


def _upgrade(connection: Connection, database: Database, steps: ModuleType, found: str | None, schema: str) -> None:
    logging.getLogger("alembic").setLevel(logging.WARNING)  # what it tells from here on is for its developers
    # Most starts find all tables as they are to be, and need not load this.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    name = database.contents.name
    with as_file(files(steps)) as folder:
        config = Config()
        config.set_main_option("script_location", str(folder))
        config.attributes["connection"] = connection
        known = {step.revision for step in ScriptDirectory.from_config(config).walk_revisions()}
        if found is not None and found not in known:
            raise FailedPrecondition(
                f"the {name} {database.where} is of a newer release (schema {found}; this one knows {schema})"
            )
        command.upgrade(config, schema)
    _log.info(f"{name} migrated", before=found, now=schema)
