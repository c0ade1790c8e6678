"""What the store writes, as operations of a transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, bindparam, delete, func, insert, select, update

from fanfold.model.principal import outermost
from fanfold.sql.instants import instant, micros
from fanfold.sql.writer import Transaction
from job_registry.states import Standing
from job_registry.store.sql.rows import kept_job, new_row, standing_columns, with_source
from job_registry.store.sql.tables import (
    counters,
    is_deleted,
    is_settled,
    is_there,
    is_unsettled,
    is_within,
    jobs,
    output,
    results,
)
from job_registry.store.store import RESULT_PART_BYTES, KeptJob, NewJob, OutputWrite, Retention

_is_this = jobs.c.number == bindparam("this")
_SELECT = select(jobs).where(_is_this)
_UPDATE = update(jobs).where(_is_this)
_COUNT = update(counters).where(counters.c.name == bindparam("counter")).values(value=counters.c.value + 1)
_NEXT = _COUNT.returning(counters.c.value)
_FIRST_SETTLED: Select[Any] = (
    select(jobs.c.number, jobs.c.change, jobs.c.settled_at).where(is_settled).order_by(jobs.c.change)
)


def take_number(transaction: Transaction) -> int:
    """The next number."""
    return _next(transaction, "number")


def add(transaction: Transaction, new: NewJob) -> KeptJob:
    """Keep a job, or find the one that its request has already."""
    connection = transaction.connection
    its = and_(jobs.c.owner == new.owner, jobs.c.request_id == new.request_id)
    known = connection.execute(select(jobs).where(its)).one_or_none()
    if known is not None:
        return kept_job(known)
    connection.execute(insert(jobs), new_row(new, transaction.now, _next(transaction, "change")))
    return kept_job(connection.execute(_SELECT, {"this": new.number}).one())


def attach(transaction: Transaction, number: int, epoch: int) -> None:
    """Note an epoch."""
    transaction.connection.execute(_UPDATE, {"this": number, "epoch": epoch})


def move(
    transaction: Transaction,
    number: int,
    standing: Standing,
    progress: str,
    written: Sequence[OutputWrite],
    result: bytes | None,
) -> KeptJob:
    """Note where a job stands; it stays as it is when it is settled."""
    connection = transaction.connection
    row = _unsettled(transaction, number)
    if row is not None:
        for write in written:
            _write(transaction, write)
        columns: dict[str, Any] = {
            **standing_columns(standing),
            "progress": progress,
            "change": _next(transaction, "change"),
        }
        if standing.state.is_settled:
            columns |= {"settled_at": transaction.now, "result_bytes": None if result is None else len(result)}
            _keep_result(transaction, number, result)
        connection.execute(_UPDATE, {"this": number, **columns})
    return kept_job(connection.execute(_SELECT, {"this": number}).one())


def write_output(transaction: Transaction, writes: Sequence[OutputWrite], progress: Mapping[int, str]) -> None:
    """Keep output and progress of jobs that are not settled."""
    for write in writes:
        _write(transaction, write)
    for number, line in progress.items():
        if _unsettled(transaction, number) is not None:
            columns = {"this": number, "progress": line, "change": _next(transaction, "change")}
            transaction.connection.execute(_UPDATE, columns)


def delete_job(transaction: Transaction, number: int) -> None:
    """Delete a settled job but for what tells its change."""
    _forget_contents(transaction, [number])
    columns = {"this": number, "deleted": True, "request_id": "", "result_bytes": None}
    transaction.connection.execute(_UPDATE, columns)


def purge(transaction: Transaction, retention: Retention, limit: int) -> int:
    """Forget up to `limit` settled jobs that are beyond the retention; gives how many.

    What an owner has too much of is deleted first, so that nobody else's jobs, and no watcher's changes, go for it.
    What tells the changes of deleted jobs goes by the same limits, counted by itself.
    """
    surplus = _beyond_of_owners(transaction, retention, limit)
    for row in surplus:
        delete_job(transaction, row.number)
    if surplus:
        return len(surplus)
    doomed = _beyond_of_all(transaction, is_there, retention, limit)
    doomed = doomed or _beyond_of_all(transaction, is_deleted, retention, limit)
    if doomed:
        connection, numbers = transaction.connection, [row.number for row in doomed]
        _forget_contents(transaction, numbers)
        connection.execute(delete(jobs).where(jobs.c.number.in_(numbers)))
        last = max(row.change for row in doomed)
        forgotten = and_(counters.c.name == "forgotten", counters.c.value < last)  # clocks can jump
        connection.execute(update(counters).where(forgotten).values(value=last))
    return len(doomed)


def _beyond_of_all(
    transaction: Transaction, of_these: ColumnElement[bool], retention: Retention, limit: int
) -> Sequence[Row[Any]]:
    connection = transaction.connection
    kept = connection.scalar(select(func.count()).select_from(jobs).where(is_settled, of_these)) or 0
    oldest = transaction.now - micros(retention.settled_age)
    return [
        row
        for place, row in enumerate(connection.execute(_FIRST_SETTLED.where(of_these).limit(limit)).all())
        if kept - place > retention.settled_jobs or row.settled_at < oldest
    ]


def _beyond_of_owners(transaction: Transaction, retention: Retention, limit: int) -> Sequence[Row[Any]]:
    """Jobs of those who, with all who are nested in them, have too many."""
    counted: Counter[str] = Counter()
    counts = select(jobs.c.owner, func.count().label("settled")).where(is_settled, is_there).group_by(jobs.c.owner)
    for row in transaction.connection.execute(counts):
        counted[outermost(row.owner)] += row.settled
    found: list[Row[Any]] = []
    for owner, settled in counted.items():
        much = min(settled - retention.settled_jobs_per_owner, limit - len(found))
        if much > 0:
            found += transaction.connection.execute(_FIRST_SETTLED.where(is_within(owner), is_there).limit(much)).all()
    return found


def _next(transaction: Transaction, counter: str) -> int:
    return int(transaction.connection.execute(_NEXT, {"counter": counter}).scalar_one())


def _unsettled(transaction: Transaction, number: int) -> Row[Any] | None:
    return transaction.connection.execute(_SELECT.where(is_unsettled), {"this": number}).one_or_none()


def _write(transaction: Transaction, write: OutputWrite) -> None:
    connection, number, source = transaction.connection, write.number, write.source
    row = _unsettled(transaction, number)
    if row is None:
        return
    connection.execute(_UPDATE, {"this": number, "sources": with_source(row.sources, source)})
    its: ColumnElement[bool] = and_(output.c.number == number, output.c.source == source.name)
    gone = its if write.afresh else and_(its, output.c.last <= source.earliest_offset)
    connection.execute(delete(output).where(gone))
    rows = [
        {
            "number": number,
            "source": source.name,
            "first": piece.offset,
            "last": piece.offset + len(piece.data),
            "time": transaction.now if piece.time is None else instant(piece.time),
            "data": piece.data,
        }
        for piece in write.pieces
    ]
    if rows:
        connection.execute(insert(output), rows)


def _keep_result(transaction: Transaction, number: int, result: bytes | None) -> None:
    if result is None:
        return
    starts = range(0, max(len(result), 1), RESULT_PART_BYTES)
    rows = [
        {"number": number, "part": part, "data": result[start : start + RESULT_PART_BYTES]}
        for part, start in enumerate(starts)
    ]
    transaction.connection.execute(insert(results), rows)


def _forget_contents(transaction: Transaction, numbers: Sequence[int]) -> None:
    for table in (output, results):
        transaction.connection.execute(delete(table).where(table.c.number.in_(numbers)))
