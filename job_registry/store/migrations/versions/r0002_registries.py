"""Several registries on one store: which of them a job's producer has come to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from fanfold.sql.words import Words

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add who holds a job, and who there is to hold it."""
    if op.get_bind().dialect.name == "postgresql":
        # A registry of the former release has the store alone as long as it holds this lock, and knows of no others.
        op.execute("SELECT pg_advisory_xact_lock(hashtext(current_setting('search_path')), 1)")
        op.execute("DROP SEQUENCE IF EXISTS holders")
    op.add_column("jobs", sa.Column("holder", Words, nullable=False, server_default=sa.text("''")))
    op.add_column("jobs", sa.Column("hold", sa.BigInteger, nullable=False, server_default=sa.text("0")))
    op.create_table(
        "registries",
        sa.Column("name", Words, primary_key=True),
        sa.Column("until", sa.BigInteger, nullable=False),
    )
