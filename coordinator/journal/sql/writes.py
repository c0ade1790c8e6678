"""What changes runs, each in a transaction that may have others beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, bindparam, delete, false, func, insert, or_, select, update

from coordinator.journal.journal import Append, Claim, Held, Holder, KeptRun, Namesake, NewRun
from coordinator.journal.rules import frees_request, held, is_repeated, name_taken, refuse_misfit, workflow_held
from coordinator.journal.sql.notices import tell_cancel, tell_let_go
from coordinator.journal.sql.rows import NOBODY, append_columns, holding, kept_run, new_row
from coordinator.journal.sql.segments import EventSegment, Segment
from coordinator.journal.sql.tables import (
    coordinators,
    event_segments,
    goes_on,
    has_object,
    has_request_id,
    has_workflow,
    record_segments,
    requests,
    runs,
)
from fanfold.sql.database import exclude
from fanfold.sql.instants import micros, moment, seconds
from fanfold.sql.writer import Transaction

_is_this_run = runs.c.run_id == bindparam("this_run")
_UPDATE = update(runs).where(_is_this_run)
_STANDING = (
    select(runs.c.epoch, runs.c.ended_at, runs.c.last_sequence, runs.c.nodes, runs.c.owner, runs.c.workflow_id)
    .where(_is_this_run)
    .with_for_update()
)
_INSERT_EVENTS = insert(event_segments)
_INSERT_RECORDS = insert(record_segments)


def accept(transaction: Transaction, new: NewRun, request: Segment, holder: Holder, lease: float) -> KeptRun:
    """Keep a run, or find the one that is kept for it."""
    run, connection, now = new.run, transaction.connection, transaction.now
    exclude(connection)
    row = _find(transaction, runs.c.run_id == run.run_id)
    earlier = None
    if row is None and new.request_id:
        row = earlier = _find(
            transaction, runs.c.owner == run.owner, runs.c.request_id == new.request_id, has_request_id
        )
    kept = None if row is None else kept_run(row, now)
    if kept is not None and (earlier is None or not frees_request(kept.run)):
        return kept
    if run.workflow_id:
        _refuse_held_workflow(transaction, run.owner, run.workflow_id)
    if earlier is not None:
        connection.execute(_UPDATE, {"this_run": earlier.run_id, "request_id": ""})
    newest = connection.scalar(select(func.max(runs.c.created_at)).where(runs.c.owner == run.owner))
    created_at = now if newest is None else max(now, newest + 1)
    connection.execute(insert(runs), new_row(new, holder, created_at, now, micros(lease)))
    connection.execute(insert(requests), {"run_id": run.run_id, "object": request.object, "data": request.data})
    return kept_run(connection.execute(select(runs).where(runs.c.run_id == run.run_id)).one(), now)


def append(
    transaction: Transaction, written: Append, events: Sequence[EventSegment], records: Sequence[Segment]
) -> Sequence[str]:
    """Write to a run; gives the objects that nothing refers to any more."""
    connection = transaction.connection
    found = _standing(transaction, written.run_id)
    if is_repeated(written, found):
        return []
    row = held(found, written.epoch)
    refuse_misfit(written, row)
    connection.execute(_UPDATE, {"this_run": written.run_id, **append_columns(written, transaction.now)})
    if events:
        connection.execute(_INSERT_EVENTS, [_event_row(written.run_id, segment) for segment in events])
    if written.forget_records:
        return forget_records(transaction, row.owner, row.workflow_id)
    if records:
        _insert_records(transaction, row.owner, row.workflow_id, records)
    return []


def use_node(transaction: Transaction, run_id: str, epoch: int, node: str) -> None:
    """Add a node to those of a run."""
    nodes: list[str] = json.loads(held(_standing(transaction, run_id), epoch).nodes)
    if node not in nodes:
        transaction.connection.execute(_UPDATE, {"this_run": run_id, "nodes": json.dumps([*nodes, node])})


def set_job(transaction: Transaction, run_id: str, epoch: int, job_id: str) -> None:
    """Note the job that a run is."""
    held(_standing(transaction, run_id), epoch)
    transaction.connection.execute(_UPDATE, {"this_run": run_id, "job_id": job_id})


def take_name(transaction: Transaction, holder: Holder, lease: float) -> Namesake | None:
    """Have a name, if no other life of the coordinator does, or one that was at the same address; else who has it."""
    was_here = and_(coordinators.c.address == holder.address, coordinators.c.address != "")
    return _have_name(transaction, holder, lease, was_here)


def _have_name(
    transaction: Transaction, holder: Holder, lease: float, may_displace: ColumnElement[bool]
) -> Namesake | None:
    connection, now = transaction.connection, transaction.now
    its_name = coordinators.c.name == holder.name
    taken = {"life": holder.life, "address": holder.address, "until": now + micros(lease)}
    is_free = or_(coordinators.c.life == holder.life, coordinators.c.until <= now, may_displace)
    if connection.execute(update(coordinators).where(its_name, is_free).values(taken)).rowcount:
        return None
    exclude(connection)
    row = connection.execute(select(coordinators).where(its_name)).one_or_none()
    if row is not None:
        return Namesake(life=row.life, address=row.address, until=moment(row.until))
    connection.execute(insert(coordinators), {"name": holder.name, **taken})
    return None


def drop_name(transaction: Transaction, holder: Holder) -> None:
    """Leave a name to the next life of the coordinator."""
    mine = and_(coordinators.c.name == holder.name, coordinators.c.life == holder.life)
    transaction.connection.execute(delete(coordinators).where(mine))


def renew(transaction: Transaction, holder: Holder, lease: float) -> Sequence[Held]:
    """Renew all leases of a holder, also those that are over."""
    if (namesake := _have_name(transaction, holder, lease, may_displace=false())) is not None:
        raise name_taken(holder, namesake)
    mine = update(runs).where(goes_on, runs.c.holder == holder.name, runs.c.lease_until != NOBODY)
    renewed = mine.values(lease_until=transaction.now + micros(lease))
    rows = transaction.connection.execute(renewed.returning(runs.c.run_id, runs.c.epoch, runs.c.cancel_reason))
    return [Held(run_id=row.run_id, epoch=row.epoch, cancel_reason=row.cancel_reason) for row in rows]


def claim(transaction: Transaction, holder: Holder, lease: float, limit: int, wanted: Claim) -> Sequence[KeptRun]:
    """Take over runs that nobody holds, those first that nobody has held for longest."""
    connection, now = transaction.connection, transaction.now
    is_free = and_(
        goes_on,
        runs.c.lease_until <= now,
        runs.c.kind.in_([kind.value for kind in wanted.kinds]),  # a newer release's kinds are none of ours
        runs.c.run_id.not_in(wanted.besides),
    )
    free = (
        select(runs.c.run_id, runs.c.epoch, runs.c.lease_until).where(is_free).order_by(runs.c.lease_until).limit(limit)
    )
    rows = connection.execute(free.with_for_update(skip_locked=True)).all()
    if not rows:
        return []
    columns = holding(holder, now, micros(lease))
    for row in rows:
        connection.execute(_UPDATE, {"this_run": row.run_id, "epoch": row.epoch + 1, **columns})
    unheld = {row.run_id: seconds(now - row.lease_until) if row.lease_until != NOBODY else math.inf for row in rows}
    claimed = connection.execute(select(runs).where(runs.c.run_id.in_(unheld)))
    return [replace(kept_run(row, now), unheld=unheld[row.run_id]) for row in claimed]


def let_go(transaction: Transaction, run_id: str, epoch: int) -> None:
    """Leave a run to whoever claims it."""
    mine = update(runs).where(runs.c.run_id == run_id, runs.c.epoch == epoch, goes_on)
    transaction.connection.execute(mine.values(lease_until=NOBODY))
    tell_let_go(transaction)


def ask_to_cancel(transaction: Transaction, run_id: str, reason: str) -> None:
    """Note why a run is to be cancelled."""
    unasked = update(runs).where(runs.c.run_id == run_id, runs.c.cancel_reason.is_(None), goes_on)
    transaction.connection.execute(unasked.values(cancel_reason=reason))
    tell_cancel(transaction)


def put_records(transaction: Transaction, owner: str, workflow_id: str, records: Sequence[Segment]) -> Sequence[str]:
    """Replace a workflow's records; gives the objects that nothing refers to any more."""
    exclude(transaction.connection)
    _refuse_held_workflow(transaction, owner, workflow_id)
    freed = forget_records(transaction, owner, workflow_id)
    if records:
        _insert_records(transaction, owner, workflow_id, records)
    return freed


def forget_records(transaction: Transaction, owner: str, workflow_id: str) -> Sequence[str]:
    """Delete a workflow's records; gives the objects that nothing refers to any more."""
    connection = transaction.connection
    its = and_(record_segments.c.owner == owner, record_segments.c.workflow_id == workflow_id)
    objects = connection.scalars(select(record_segments.c.object).where(its, has_object(record_segments))).all()
    connection.execute(delete(record_segments).where(its))
    return objects


def _find(transaction: Transaction, *conditions: ColumnElement[bool]) -> Row[Any] | None:
    return transaction.connection.execute(select(runs).where(*conditions)).one_or_none()


def _standing(transaction: Transaction, run_id: str) -> Any:
    return transaction.connection.execute(_STANDING, {"this_run": run_id}).one_or_none()


def _refuse_held_workflow(transaction: Transaction, owner: str, workflow_id: str) -> None:
    row = _find(transaction, runs.c.owner == owner, runs.c.workflow_id == workflow_id, has_workflow, goes_on)
    if row is not None:
        raise workflow_held(workflow_id, row.run_id, moment(row.held_since))


def _event_row(run_id: str, segment: EventSegment) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "first": segment.first,
        "last": segment.last,
        "object": segment.object,
        "data": segment.data,
    }


def _insert_records(transaction: Transaction, owner: str, workflow_id: str, records: Sequence[Segment]) -> None:
    common = {"owner": owner, "workflow_id": workflow_id, "written_at": transaction.now}
    rows = [common | {"object": segment.object, "data": segment.data} for segment in records]
    transaction.connection.execute(_INSERT_RECORDS, rows)
