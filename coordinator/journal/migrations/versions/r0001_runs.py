"""Runs, their events and requests, and the records of workflows."""

from __future__ import annotations

import uuid

import sqlalchemy as sa
from alembic import op

from fanfold.sql.words import Words

revision = "0001"
down_revision = None

_GOES_ON = "ended_at IS NULL"


def upgrade() -> None:
    """Make all tables."""
    _make_runs()
    op.create_table(
        "requests",
        sa.Column("run_id", Words, primary_key=True),
        sa.Column("object", Words, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "event_segments",
        sa.Column("run_id", Words, primary_key=True),
        sa.Column("last", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("first", sa.BigInteger, nullable=False),
        sa.Column("object", Words, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "record_segments",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("owner", Words, nullable=False),
        sa.Column("workflow_id", Words, nullable=False),
        sa.Column("written_at", sa.BigInteger, nullable=False),
        sa.Column("object", Words, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_index("records_by_workflow", "record_segments", ["owner", "workflow_id", "id", "written_at"])
    for table in ("requests", "event_segments", "record_segments"):
        _make_index(f"objects_of_{table}", table, ["object"], where="object != ''")
    identity = op.create_table("identity", sa.Column("journal_id", Words, primary_key=True))
    op.bulk_insert(identity, [{"journal_id": uuid.uuid4().hex}])


def _make_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("run_id", Words, primary_key=True),
        sa.Column("owner", Words, nullable=False),
        sa.Column("kind", Words, nullable=False),
        sa.Column("state", Words, nullable=False),
        sa.Column("workflow_id", Words, nullable=False),
        sa.Column("request_id", Words, nullable=False),
        sa.Column("request_digest", Words, nullable=False),
        sa.Column("attached", sa.Boolean, nullable=False),
        sa.Column("job_id", Words, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        sa.Column("holder", Words, nullable=False),
        sa.Column("address", Words, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("lease_until", sa.BigInteger, nullable=False),
        sa.Column("held_since", sa.BigInteger, nullable=False),
        sa.Column("nodes", Words, nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("running", sa.Integer, nullable=False),
        sa.Column("succeeded", sa.Integer, nullable=False),
        sa.Column("failed", sa.Integer, nullable=False),
        sa.Column("budget_limit", sa.BigInteger),
        sa.Column("budget_spent", sa.BigInteger),
        sa.Column("budget_refused", sa.Integer),
        sa.Column("waiting_on", Words, nullable=False),
        sa.Column("reason", Words, nullable=False),
        sa.Column("cancel_reason", Words),
        sa.Column("last_sequence", sa.BigInteger, nullable=False),
        sa.Column("swept_sequence", sa.BigInteger, nullable=False),
    )
    op.create_index("runs_by_age", "runs", ["owner", "created_at", "run_id"])
    op.create_index("runs_by_workflow", "runs", ["owner", "workflow_id", "created_at"])
    _make_index("runs_by_request", "runs", ["owner", "request_id"], where="request_id != ''", unique=True)
    its_workflow = ["owner", "workflow_id"]
    _make_index(
        "runs_of_workflow_going_on", "runs", its_workflow, where=f"workflow_id != '' AND {_GOES_ON}", unique=True
    )
    _make_index("runs_by_lease", "runs", ["lease_until"], where=_GOES_ON)
    _make_index("runs_by_holder", "runs", ["holder"], where=_GOES_ON)
    _make_index("runs_by_end", "runs", ["ended_at", "run_id"], where="ended_at IS NOT NULL")


def _make_index(name: str, table: str, columns: list[str], *, where: str, unique: bool = False) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
