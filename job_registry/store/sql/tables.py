"""The tables. Instants are microseconds since 1970; migrations make the tables, and a test compares both."""

from __future__ import annotations

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
    false,
    func,
    literal_column,
    or_,
    text,
    true,
)

from fanfold.sql.words import Words

metadata = MetaData()

jobs = Table(
    "jobs",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Words, nullable=False),
    Column("owner", Words, nullable=False),  # empty: open to all
    Column("producer", Words, nullable=False),
    Column("request_id", Words, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("label", Words, nullable=False),
    Column("parent", Words, nullable=False),
    Column("holds", Words, nullable=False),
    Column("state", Words, nullable=False),
    Column("detail", Words, nullable=False),
    Column("stop_reason", Words, nullable=False),
    Column("given_up", Boolean, nullable=False),
    Column("progress", Words, nullable=False),
    Column("sources", Words, nullable=False),  # a JSON list
    Column("result_bytes", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("settled_at", BigInteger),
    Column("change", BigInteger, nullable=False),
    Column("deleted", Boolean, nullable=False),
    Column("holder", Words, nullable=False, server_default=text("''")),
    Column("hold", BigInteger, nullable=False, server_default=text("0")),
    Column("uncut", Boolean, nullable=False, server_default=false()),  # has more output than is to stay
    Column("traceparent", Words, nullable=False, server_default=text("''")),  # empty: nobody traces it
    Column("tracestate", Words, nullable=False, server_default=text("''")),
)
"""One row a job."""

has_request_id = jobs.c.request_id != ""
is_unsettled = jobs.c.settled_at.is_(None)
is_settled = jobs.c.settled_at.is_not(None)
is_there = jobs.c.deleted == false()
is_deleted = jobs.c.deleted == true()
is_uncut: ColumnElement[bool] = literal_column("uncut")  # in the words of its index, whichever the database

Index("jobs_by_change", jobs.c.change, unique=True)
Index(
    "jobs_by_request",
    jobs.c.owner,
    jobs.c.request_id,
    unique=True,
    sqlite_where=has_request_id,
    postgresql_where=has_request_id,
)
Index("jobs_unsettled", jobs.c.number, sqlite_where=is_unsettled, postgresql_where=is_unsettled)
Index("jobs_uncut", jobs.c.settled_at, sqlite_where=is_uncut, postgresql_where=is_uncut)
Index("jobs_settled", jobs.c.change, jobs.c.settled_at, sqlite_where=is_settled, postgresql_where=is_settled)


def is_within(principal: str, other: ColumnElement[str] = jobs.c.owner) -> ColumnElement[bool]:
    """Whether the principal covers another, by default a job's owner (C34).

    Not by LIKE, for which SQLite takes `Alice` for `alice`.
    """
    within = f"{principal}/"
    return or_(other == principal, func.substr(other, 1, len(within)) == within)


output = Table(
    "output",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("source", Words, primary_key=True),
    Column("first", BigInteger, primary_key=True, autoincrement=False),
    Column("last", BigInteger, nullable=False),  # the offset after it
    Column("time", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
)
"""Pieces of output, each written once."""

results = Table(
    "results",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("part", Integer, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
)
"""Results, in parts."""

counters = Table(
    "counters",
    metadata,
    Column("name", Words, primary_key=True),
    Column("value", BigInteger, nullable=False),
)
"""The last `number` and `change` that were given, and the last change that was `forgotten`."""

registries = Table(
    "registries",
    metadata,
    Column("name", Words, primary_key=True),
    Column("until", BigInteger, nullable=False),
)
"""Those that are there, each until it says so again."""

identity = Table("identity", metadata, Column("store_id", Words, primary_key=True))
"""One row, which tells this store from all others."""
