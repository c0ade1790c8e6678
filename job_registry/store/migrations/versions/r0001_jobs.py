"""Jobs, their output and their results."""

from __future__ import annotations

import uuid

import sqlalchemy as sa
from alembic import op

from fanfold.sql.words import Words

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make all tables."""
    _make_jobs()
    op.create_table(
        "output",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("source", Words, primary_key=True),
        sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("last", sa.BigInteger, nullable=False),
        sa.Column("time", sa.BigInteger, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "results",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    counters = op.create_table(
        "counters",
        sa.Column("name", Words, primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(counters, [{"name": name, "value": 0} for name in ("number", "change", "forgotten")])
    identity = op.create_table("identity", sa.Column("store_id", Words, primary_key=True))
    op.bulk_insert(identity, [{"store_id": uuid.uuid4().hex}])


def _make_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("kind", Words, nullable=False),
        sa.Column("owner", Words, nullable=False),
        sa.Column("producer", Words, nullable=False),
        sa.Column("request_id", Words, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("label", Words, nullable=False),
        sa.Column("parent", Words, nullable=False),
        sa.Column("holds", Words, nullable=False),
        sa.Column("state", Words, nullable=False),
        sa.Column("detail", Words, nullable=False),
        sa.Column("stop_reason", Words, nullable=False),
        sa.Column("given_up", sa.Boolean, nullable=False),
        sa.Column("progress", Words, nullable=False),
        sa.Column("sources", Words, nullable=False),
        sa.Column("result_bytes", sa.BigInteger),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("settled_at", sa.BigInteger),
        sa.Column("change", sa.BigInteger, nullable=False),
        sa.Column("deleted", sa.Boolean, nullable=False),
    )
    op.create_index("jobs_by_change", "jobs", ["change"], unique=True)
    _make_index("jobs_by_request", ["owner", "request_id"], where="request_id != ''", unique=True)
    _make_index("jobs_unsettled", ["number"], where="settled_at IS NULL")
    _make_index("jobs_settled", ["change", "settled_at"], where="settled_at IS NOT NULL")


def _make_index(name: str, columns: list[str], *, where: str, unique: bool = False) -> None:
    condition = sa.text(where)
    op.create_index(name, "jobs", columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
