"""The names of coordinators, each of which one process has at a time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from fanfold.sql.words import Words

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add who has a name."""
    op.create_table(
        "coordinators",
        sa.Column("name", Words, primary_key=True),
        sa.Column("life", Words, nullable=False),
        sa.Column("address", Words, nullable=False),
        sa.Column("until", sa.BigInteger, nullable=False),
    )
