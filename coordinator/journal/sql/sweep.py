"""What is deleted, and when (C39): in many small transactions, so that no holder waits long for its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sqlalchemy import ColumnElement, delete, exists, func, select, union_all, update

from coordinator.journal.journal import Retention
from coordinator.journal.sql.objects import Objects
from coordinator.journal.sql.tables import (
    coordinators,
    event_segments,
    goes_on,
    has_ended,
    has_object,
    record_segments,
    requests,
    runs,
)
from coordinator.journal.sql.writes import forget_records
from fanfold.sql.access import Access
from fanfold.sql.database import exclude
from fanfold.sql.instants import micros
from fanfold.sql.writer import Transaction

SLICE = 32
"""Segments of events deleted in one transaction."""

ORPHAN_AGE = 3_600.0
"""Seconds after which an object that nothing refers to never will be: its transaction failed, or never began."""

_latest_end_first = (runs.c.ended_at.desc(), runs.c.run_id.desc())


async def sweep(access: Access, objects: Objects, retention: Retention) -> int:
    """Delete what is beyond the retention; gives the number of runs deleted. Raises JournalFailed."""
    surplus = await access.read(partial(_surplus_runs, retention=retention))
    for run_id in surplus:
        await _delete_events(access, objects, run_id)
        await objects.discard(await access.write(partial(_delete_run, run_id=run_id)))
    for run_id in await access.read(partial(_runs_with_surplus_events, retention=retention)):
        await _delete_events(access, objects, run_id)
    for owner, workflow_id in await access.read(partial(_stale_workflows, retention=retention)):
        forget = partial(_forget_if_stale, owner=owner, workflow_id=workflow_id, retention=retention)
        await objects.discard(await access.write(forget))
    await access.write(_forget_names)
    old = await objects.older_than(ORPHAN_AGE)
    if old:
        await objects.discard(old - await access.read(_objects_referred_to))
    return len(surplus)


def _forget_names(transaction: Transaction) -> None:
    """Forget coordinators that are not there any more."""
    transaction.connection.execute(delete(coordinators).where(coordinators.c.until <= transaction.now))


async def _delete_events(access: Access, objects: Objects, run_id: str) -> None:
    while (freed := await access.write(partial(_delete_slice, run_id=run_id))) is not None:
        await objects.discard(freed)


def _surplus_runs(transaction: Transaction, retention: Retention) -> set[str]:
    """Runs that ended too long ago, or that are too many."""
    ended = select(runs.c.run_id).where(has_ended)
    too_many = ended.order_by(*_latest_end_first).offset(retention.ended_runs)
    too_old = ended.where(runs.c.ended_at < transaction.now - micros(retention.ended_run_age))
    return {*transaction.connection.scalars(too_many), *transaction.connection.scalars(too_old)}


def _runs_with_surplus_events(transaction: Transaction, retention: Retention) -> Sequence[str]:
    """Runs whose events are too many, together with those of all runs that ended later."""
    count = runs.c.last_sequence - runs.c.swept_sequence
    so_far = func.sum(count).over(order_by=_latest_end_first).label("so_far")
    with_events = select(runs.c.run_id, so_far).where(has_ended, count > 0).subquery()
    surplus = select(with_events.c.run_id).where(with_events.c.so_far > retention.events)
    return transaction.connection.scalars(surplus).all()


def _delete_slice(transaction: Transaction, run_id: str) -> Sequence[str] | None:
    """Delete the first events of a run that has ended; gives the objects that were theirs, None if none were left."""
    segments = event_segments.c
    first = select(segments.last, segments.object).where(segments.run_id == run_id).order_by(segments.last).limit(SLICE)
    rows = transaction.connection.execute(first).all()
    if not rows:
        return None
    last = rows[-1].last
    transaction.connection.execute(delete(event_segments).where(segments.run_id == run_id, segments.last <= last))
    transaction.connection.execute(update(runs).where(runs.c.run_id == run_id).values(swept_sequence=last))
    return [row.object for row in rows if row.object]


def _delete_run(transaction: Transaction, run_id: str) -> Sequence[str]:
    """Delete a run that has no events any more; gives the object of its request, if it had one."""
    connection = transaction.connection
    freed = connection.scalars(select(requests.c.object).where(requests.c.run_id == run_id, has_object(requests)))
    objects = freed.all()
    connection.execute(delete(requests).where(requests.c.run_id == run_id))
    connection.execute(delete(runs).where(runs.c.run_id == run_id))
    return objects


def _stale_workflows(
    transaction: Transaction, retention: Retention, *conditions: ColumnElement[bool]
) -> Sequence[tuple[str, str]]:
    """Owner and id of workflows whose records are too old, and of which no run goes on."""
    records = record_segments.c
    its_run = (runs.c.owner == records.owner, runs.c.workflow_id == records.workflow_id)
    is_going_on = exists().where(*its_run, goes_on)
    workflows = select(records.owner, records.workflow_id).where(~is_going_on, *conditions)
    latest = func.max(records.written_at)
    stale = workflows.group_by(records.owner, records.workflow_id).having(
        latest < transaction.now - micros(retention.record_age)
    )
    return [(row.owner, row.workflow_id) for row in transaction.connection.execute(stale)]


def _forget_if_stale(transaction: Transaction, owner: str, workflow_id: str, retention: Retention) -> Sequence[str]:
    """Delete a workflow's records unless something has happened to it since; gives the objects that were theirs."""
    exclude(transaction.connection)
    its = (record_segments.c.owner == owner, record_segments.c.workflow_id == workflow_id)
    return forget_records(transaction, owner, workflow_id) if _stale_workflows(transaction, retention, *its) else []


def _objects_referred_to(transaction: Transaction) -> set[str]:
    tables = (requests, event_segments, record_segments)
    return set(
        transaction.connection.scalars(
            union_all(*(select(table.c.object).where(has_object(table)) for table in tables))
        )
    )
