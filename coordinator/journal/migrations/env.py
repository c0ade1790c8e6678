"""Runs migrations on the connection that `coordinator.journal.sql.schema` gives, in its transaction."""

from alembic import context

from coordinator.journal.sql.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite changes few tables in place
)
context.run_migrations()
