"""What jobs are traced as, so that whichever registry carries them later goes on with it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from fanfold.sql.words import Words

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add it; jobs from before have none."""
    for name in ("traceparent", "tracestate"):
        op.add_column("jobs", sa.Column(name, Words, nullable=False, server_default=sa.text("''")))
