"""The tables. Instants are microseconds since 1970; migrations make the tables, and a test compares both."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    and_,
    text,
)

from fanfold.sql.words import Words

metadata = MetaData()

runs = Table(
    "runs",
    metadata,
    Column("run_id", Words, primary_key=True),
    Column("owner", Words, nullable=False),
    Column("kind", Words, nullable=False),
    Column("state", Words, nullable=False),
    Column("workflow_id", Words, nullable=False),
    Column("request_id", Words, nullable=False),
    Column("request_digest", Words, nullable=False),
    Column("attached", Boolean, nullable=False),
    Column("job_id", Words, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("holder", Words, nullable=False),
    Column("address", Words, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("lease_until", BigInteger, nullable=False),  # 0: nobody holds it
    Column("held_since", BigInteger, nullable=False),
    Column("nodes", Words, nullable=False),  # a JSON list
    Column("total", Integer, nullable=False),
    Column("running", Integer, nullable=False),
    Column("succeeded", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("budget_limit", BigInteger),
    Column("budget_spent", BigInteger),
    Column("budget_refused", Integer),
    Column("waiting_on", Words, nullable=False),
    Column("reason", Words, nullable=False),
    Column("cancel_reason", Words),
    Column("last_sequence", BigInteger, nullable=False),
    Column("swept_sequence", BigInteger, nullable=False),  # events up to this one are gone
)
"""One row a run."""

requests = Table(
    "requests",
    metadata,
    Column("run_id", Words, primary_key=True),
    Column("object", Words, nullable=False),
    Column("data", LargeBinary, nullable=False),
)
"""What runs were asked for; apart from their rows, which are rewritten with every append."""

event_segments = Table(
    "event_segments",
    metadata,
    Column("run_id", Words, primary_key=True),
    Column("last", BigInteger, primary_key=True, autoincrement=False),
    Column("first", BigInteger, nullable=False),
    Column("object", Words, nullable=False),
    Column("data", LargeBinary, nullable=False),
)
"""Events that were appended together, with the numbers of the first and the last one; see `segments`."""

record_segments = Table(
    "record_segments",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("owner", Words, nullable=False),
    Column("workflow_id", Words, nullable=False),
    Column("written_at", BigInteger, nullable=False),
    Column("object", Words, nullable=False),
    Column("data", LargeBinary, nullable=False),
)
"""Records that were written together; of those with one key the latest holds."""

coordinators = Table(
    "coordinators",
    metadata,
    Column("name", Words, primary_key=True),
    Column("life", Words, nullable=False),
    Column("address", Words, nullable=False),
    Column("until", BigInteger, nullable=False),
)
"""Which life of a coordinator has a name, and until when unless it renews that."""

identity = Table("identity", metadata, Column("journal_id", Words, primary_key=True))
"""One row: what tells this journal's objects from those of others in the same store."""


_EMPTY = text("''")  # not a parameter: databases use a partial index only for its very condition

goes_on = runs.c.ended_at.is_(None)
has_ended = runs.c.ended_at.is_not(None)
has_workflow = runs.c.workflow_id != _EMPTY
has_request_id = runs.c.request_id != _EMPTY


def has_object(table: Table) -> ColumnElement[bool]:
    """Whether a segment has an object."""
    return table.c.object != _EMPTY


def _index(name: str, *columns: Column[Any], unique: bool = False, where: ColumnElement[bool] | None = None) -> None:
    Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)


_index("runs_by_age", runs.c.owner, runs.c.created_at, runs.c.run_id)
_index("runs_by_workflow", runs.c.owner, runs.c.workflow_id, runs.c.created_at)
_index("runs_by_request", runs.c.owner, runs.c.request_id, where=has_request_id, unique=True)
_index("runs_of_workflow_going_on", runs.c.owner, runs.c.workflow_id, where=and_(has_workflow, goes_on), unique=True)
_index("runs_by_lease", runs.c.lease_until, where=goes_on)
_index("runs_by_holder", runs.c.holder, where=goes_on)
_index("runs_by_end", runs.c.ended_at, runs.c.run_id, where=has_ended)
_index(
    "records_by_workflow",
    record_segments.c.owner,
    record_segments.c.workflow_id,
    record_segments.c.id,
    record_segments.c.written_at,
)
for _table in (requests, event_segments, record_segments):
    _index(f"objects_of_{_table.name}", _table.c.object, where=has_object(_table))
