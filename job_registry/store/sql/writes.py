"""What the store writes, as operations of a transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    true,
    update,
)

from fanfold.model.principal import outermost
from fanfold.sql.instants import instant, micros
from fanfold.sql.writer import Transaction
from job_registry.limits import Room
from job_registry.refusals import stale_epoch, superseded
from job_registry.states import Move
from job_registry.store.sql.notices import tell_changes, tell_output
from job_registry.store.sql.rows import kept_job, new_row, standing_columns, with_source
from job_registry.store.sql.tables import (
    counters,
    is_deleted,
    is_settled,
    is_there,
    is_uncut,
    is_unsettled,
    is_within,
    jobs,
    output,
    registries,
    results,
)
from job_registry.store.store import (
    RESULT_PART_BYTES,
    KeptJob,
    Moved,
    NewJob,
    OutputWrite,
    Retention,
    is_beyond,
)

_AT_ONCE = 1_000
"""Numbers in one statement; databases take tens of thousands."""

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


def add(transaction: Transaction, new: NewJob, room: Room | None) -> KeptJob:
    """Keep a job, as far as there is room, or find the one that its request has already."""
    connection = transaction.connection
    its = and_(jobs.c.owner == new.owner, jobs.c.request_id == new.request_id)
    known = connection.execute(select(jobs).where(its)).one_or_none()
    if known is not None:
        return kept_job(known)
    if room is not None:
        _require(transaction, room)
    connection.execute(insert(jobs), new_row(new, transaction.now, _next(transaction, "change")))
    tell_changes(transaction)
    return _kept(transaction, new.number)


def _require(transaction: Transaction, room: Room) -> None:
    """Raise TooManyJobs unless there is room. All live jobs are counted only where those that are newer may matter."""
    connection, newer = transaction.connection, jobs.c.change > room.position
    if room.is_certain(connection.scalar(select(func.count()).where(newer, is_unsettled)) or 0):
        return
    counted_by = case((jobs.c.owner == "", jobs.c.producer), else_=jobs.c.owner)
    of_root = func.count().filter(is_within(room.root, counted_by))
    room.require(*connection.execute(select(func.count(), of_root).where(is_unsettled)).one())


def attach(transaction: Transaction, number: int, epoch: int, holder: str, hold: int) -> KeptJob:
    """Have another stream hold a job that is not settled, and was held so."""
    row = _unsettled(transaction, number)
    if row is None:
        return _kept(transaction, number)
    if epoch < row.epoch:
        raise stale_epoch(row.epoch, epoch)
    if hold == row.hold:
        _change(transaction, number, epoch=epoch, holder=holder, hold=hold + 1)
    return _kept(transaction, number)


def leave(transaction: Transaction, holds: Mapping[int, int]) -> None:
    """Note that streams have ended."""
    for number, row in _held(transaction, holds).items():
        if row.holder:
            _change(transaction, number, holder="")


def move(
    transaction: Transaction,
    number: int,
    move: Move,
    hold: int | None,
    progress: str | None,
    written: Sequence[OutputWrite],
    result: bytes | None,
    settled_bytes: int,
) -> Moved:
    """Move a job."""
    kept = _kept(transaction, number)
    if hold is not None and not kept.state.is_settled and hold != kept.hold:
        raise superseded()
    standing = move(kept.standing)
    if standing == kept.standing:
        return Moved(kept, is_new=False)
    for write in written:
        _write(transaction, write)
    columns: dict[str, Any] = standing_columns(standing)
    if progress is not None:
        columns["progress"] = progress
    if standing.state.is_settled:
        columns |= {"settled_at": transaction.now, "result_bytes": None if result is None else len(result)}
        columns["uncut"] = is_beyond(kept.sources, written, settled_bytes)
        _keep_result(transaction, number, result)
    _change(transaction, number, **columns)
    return Moved(_kept(transaction, number), is_new=True)


def write_output(
    transaction: Transaction, writes: Sequence[OutputWrite], progress: Mapping[int, str], holds: Mapping[int, int]
) -> None:
    """Keep output and progress of jobs that are held so."""
    held = _held(transaction, holds)
    for write in writes:
        if write.number in held:
            _write(transaction, write)
    for number, line in progress.items():
        if number in held:
            _change(transaction, number, progress=line)
    tell_output(transaction, {write.number for write in writes})


def cut_output(transaction: Transaction, cut: Mapping[int, Sequence[OutputWrite]]) -> None:
    """Keep less output of jobs that are uncut."""
    connection, wanted = transaction.connection, jobs.c.number.in_(cut)
    numbers = connection.scalars(select(jobs.c.number).where(wanted, is_uncut)).all()
    for number in numbers:
        for write in cut[number]:
            _write(transaction, write)
    connection.execute(update(jobs).where(wanted).values(uncut=False))


def renew(transaction: Transaction, name: str, lease: float, alone: bool) -> Collection[str]:
    """Note that a registry is there, and no other if it has the database alone; the names of all that are."""
    connection = transaction.connection
    gone = true() if alone else or_(registries.c.name == name, registries.c.until < transaction.now)
    connection.execute(delete(registries).where(gone))
    connection.execute(insert(registries), {"name": name, "until": transaction.now + micros(lease)})
    return connection.scalars(select(registries.c.name)).all()


def delete_job(transaction: Transaction, number: int) -> None:
    """Delete a settled job but for what tells its change."""
    _forget_contents(transaction, [number])
    columns = {"this": number, "deleted": True, "uncut": False, "request_id": "", "result_bytes": None}
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


def _change(transaction: Transaction, number: int, **columns: Any) -> None:
    """Change a job so that it is told."""
    columns["change"] = _next(transaction, "change")
    transaction.connection.execute(_UPDATE, {"this": number, **columns})
    tell_changes(transaction)


def _next(transaction: Transaction, counter: str) -> int:
    return int(transaction.connection.execute(_NEXT, {"counter": counter}).scalar_one())


def _kept(transaction: Transaction, number: int) -> KeptJob:
    return kept_job(transaction.connection.execute(_SELECT, {"this": number}).one())


def _held(transaction: Transaction, holds: Mapping[int, int]) -> Mapping[int, Row[Any]]:
    """The jobs, by number, that are not settled and have these holds."""
    found: dict[int, Row[Any]] = {}
    numbers = list(holds)
    for first in range(0, len(numbers), _AT_ONCE):
        these = jobs.c.number.in_(numbers[first : first + _AT_ONCE])
        its = select(jobs.c.number, jobs.c.hold, jobs.c.holder).where(these, is_unsettled)
        found |= {row.number: row for row in transaction.connection.execute(its) if row.hold == holds[row.number]}
    return found


def _unsettled(transaction: Transaction, number: int) -> Row[Any] | None:
    return transaction.connection.execute(_SELECT.where(is_unsettled), {"this": number}).one_or_none()


def _write(transaction: Transaction, write: OutputWrite) -> None:
    connection, number, source = transaction.connection, write.number, write.source
    sources = connection.scalar(select(jobs.c.sources).where(jobs.c.number == number))
    connection.execute(_UPDATE, {"this": number, "sources": with_source(sources or "[]", source)})
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
