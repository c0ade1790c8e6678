"""Which settled jobs still have all the output that they had when they were live."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the mark, which jobs have that settle from now on, and find those that have it without looking at others."""
    op.add_column("jobs", sa.Column("uncut", sa.Boolean, nullable=False, server_default=sa.false()))
    marked = sa.text("uncut")
    op.create_index("jobs_uncut", "jobs", ["settled_at"], sqlite_where=marked, postgresql_where=marked)
