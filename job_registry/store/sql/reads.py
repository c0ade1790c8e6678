"""What the store reads, as operations of a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, or_, select, true

from fanfold.model.job import OutputPiece
from fanfold.sql.instants import micros, moment
from fanfold.sql.writer import Transaction
from job_registry.store.sql.rows import kept_job, sources_of
from job_registry.store.sql.tables import (
    counters,
    has_request_id,
    identity,
    is_there,
    is_uncut,
    is_unsettled,
    is_within,
    jobs,
    output,
    results,
)
from job_registry.store.store import Changes, ChangesGone, JobQuery, KeptJob, KeptOutput


def store_id(transaction: Transaction) -> str:
    """What tells this store from others."""
    return str(transaction.connection.scalar(select(identity.c.store_id)))


def find(transaction: Transaction, number: int) -> KeptJob | None:
    """A job by its number."""
    return _one(transaction, jobs.c.number == number)


def find_request(transaction: Transaction, owner: str, request_id: str) -> KeptJob | None:
    """The job of a request."""
    return _one(transaction, jobs.c.owner == owner, jobs.c.request_id == request_id, has_request_id)


def unsettled(transaction: Transaction) -> Sequence[KeptJob]:
    """All jobs that are not settled."""
    return _many(transaction, select(jobs).where(is_unsettled))


def uncut(transaction: Transaction, seconds: float, limit: int) -> Sequence[int]:
    """Jobs that are uncut and have settled longer than that ago."""
    due = jobs.c.settled_at < transaction.now - micros(seconds)
    its = select(jobs.c.number).where(is_uncut, due).order_by(jobs.c.settled_at).limit(limit)
    return transaction.connection.scalars(its).all()


def list_jobs(transaction: Transaction, query: JobQuery, before: int | None) -> Sequence[KeptJob]:
    """Jobs by descending number."""
    page = select(jobs).where(is_there, _matches(query)).order_by(jobs.c.number.desc()).limit(query.limit)
    return _many(transaction, page if before is None else page.where(jobs.c.number < before))


def position(transaction: Transaction) -> int:
    """The last change."""
    return _counter(transaction, "change")


def changes(transaction: Transaction, query: JobQuery, after: int) -> Changes:
    """Jobs by change."""
    last = _counter(transaction, "change")
    if not _counter(transaction, "forgotten") <= after <= last:
        raise ChangesGone
    page = select(jobs).where(jobs.c.change > after, _matches(query)).order_by(jobs.c.change).limit(query.limit)
    found = _many(transaction, page)
    return Changes(jobs=found, position=found[-1].change if len(found) == query.limit else last)


def output_of(transaction: Transaction, number: int, source: str | None, offset: int) -> Sequence[KeptOutput]:
    """Output of sources, from a byte on."""
    text = transaction.connection.scalar(select(jobs.c.sources).where(jobs.c.number == number))
    wanted = [each for each in sources_of(text or "[]") if source in (None, each.name)]
    return [KeptOutput(source=each, pieces=_pieces(transaction, number, each.name, offset)) for each in wanted]


def result_part(transaction: Transaction, number: int, part: int) -> bytes | None:
    """A part of a result."""
    its = select(results.c.data).where(results.c.number == number, results.c.part == part)
    return transaction.connection.scalar(its)


def _one(transaction: Transaction, *conditions: ColumnElement[bool]) -> KeptJob | None:
    row = transaction.connection.execute(select(jobs).where(*conditions)).one_or_none()
    return None if row is None else kept_job(row)


def _many(transaction: Transaction, query: Select[Any]) -> Sequence[KeptJob]:
    return [kept_job(row) for row in transaction.connection.execute(query)]


def _pieces(transaction: Transaction, number: int, source: str, offset: int) -> Sequence[OutputPiece]:
    its = select(output).where(output.c.number == number, output.c.source == source, output.c.last > offset)
    return [_piece_of(row) for row in transaction.connection.execute(its.order_by(output.c.first))]


def _piece_of(row: Row[Any]) -> OutputPiece:
    return OutputPiece(offset=row.first, data=row.data, time=moment(row.time))


def _counter(transaction: Transaction, name: str) -> int:
    return int(transaction.connection.execute(select(counters.c.value).where(counters.c.name == name)).scalar_one())


def _matches(query: JobQuery) -> ColumnElement[bool]:
    wanted = query.wanted
    conditions: list[ColumnElement[bool]] = [true()]
    if query.reach is not None:
        conditions.append(or_(jobs.c.owner == "", is_within(query.reach)))
    if wanted.owner:
        conditions.append(is_within(wanted.owner))
    if wanted.kind:
        conditions.append(jobs.c.kind == wanted.kind)
    if wanted.states:
        conditions.append(jobs.c.state.in_([state.value for state in wanted.states]))
    if wanted.label:
        conditions.append(jobs.c.label == wanted.label)
    if wanted.parent:
        conditions.append(jobs.c.parent == wanted.parent)
    return and_(*conditions)
