"""What is read of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from sqlalchemy import ColumnElement, and_, func, or_, select, tuple_

from coordinator.journal.journal import Entry, KeptRun, Record, RunFilter
from coordinator.journal.payloads import Reference
from coordinator.journal.sql.rows import kept_run
from coordinator.journal.sql.segments import Body, KeptRecord, events_in, records_in, request_in
from coordinator.journal.sql.tables import event_segments, goes_on, identity, record_segments, requests, runs
from fanfold.sql.instants import instant, seconds
from fanfold.sql.writer import Transaction

_AFTER_SLASH = chr(ord("/") + 1)

Fetch = Callable[[str, Reference], bytes]
"""Gives what a reference into an object, given by its name, is to."""


def journal_id(transaction: Transaction) -> str:
    """What tells this journal from others."""
    return str(transaction.connection.scalar(select(identity.c.journal_id)))


def latest_run(transaction: Transaction, conditions: Iterable[ColumnElement[bool]]) -> KeptRun | None:
    """The latest run of which all this is true."""
    latest = select(runs).where(*conditions).order_by(runs.c.created_at.desc()).limit(1)
    row = transaction.connection.execute(latest).one_or_none()
    return None if row is None else kept_run(row, transaction.now)


def list_runs(transaction: Transaction, wanted: RunFilter) -> Sequence[KeptRun]:
    """Runs by filter, newest first."""
    page = select(runs)
    if wanted.owner is not None:
        page = page.where(_covered_by(wanted.owner))
    if wanted.states:
        page = page.where(runs.c.state.in_([state.value for state in wanted.states]))
    if wanted.workflow_id:
        page = page.where(runs.c.workflow_id == wanted.workflow_id)
    if wanted.before is not None:
        created_at, run_id = wanted.before
        page = page.where(tuple_(runs.c.created_at, runs.c.run_id) < tuple_(instant(created_at), run_id))
    page = page.order_by(runs.c.created_at.desc(), runs.c.run_id.desc()).limit(wanted.limit)
    return [kept_run(row, transaction.now) for row in transaction.connection.execute(page)]


def _covered_by(owner: str) -> ColumnElement[bool]:
    """Of `owner` or of a principal nested in it (C34): a range of names by their bytes, for which there is an index."""
    return or_(runs.c.owner == owner, and_(runs.c.owner > f"{owner}/", runs.c.owner < f"{owner}{_AFTER_SLASH}"))


def request(transaction: Transaction, run_id: str, fetch: Fetch) -> bytes:
    """What a run was asked for; empty for one that is not kept."""
    row = transaction.connection.execute(select(requests).where(requests.c.run_id == run_id)).one_or_none()
    return b"" if row is None else _fetched(request_in(row.data), row.object, fetch)


def entries(transaction: Transaction, run_id: str, first: int, max_bytes: int, fetch: Fetch) -> Sequence[Entry]:
    """Kept events from number `first` on."""
    its = select(event_segments).where(event_segments.c.run_id == run_id, event_segments.c.last >= first)
    connection = transaction.connection.execution_options(stream_results=True)
    found: list[Entry] = []
    size = 0
    for row in connection.execute(its.order_by(event_segments.c.last)):
        for event in events_in(row.data, row.first):
            if event.sequence < first:
                continue
            size += len(event.body)
            if found and size > max_bytes:
                return found
            found.append(Entry(event.sequence, _fetched(event.body, row.object, fetch), event.outcomes_only))
    return found


def records(transaction: Transaction, owner: str, workflow_id: str, fetch: Fetch) -> Sequence[Record]:
    """The latest record of each key of a workflow."""
    its = select(record_segments).where(record_segments.c.owner == owner, record_segments.c.workflow_id == workflow_id)
    latest: dict[str, tuple[KeptRecord, str]] = {}
    for row in transaction.connection.execute(its.order_by(record_segments.c.id)):
        latest |= {record.key: (record, row.object) for record in records_in(row.data)}
    return [
        Record(record.key, record.fingerprint, _fetched(record.body, name, fetch)) for record, name in latest.values()
    ]


def _fetched(body: Body, name: str, fetch: Fetch) -> bytes:
    return body if isinstance(body, bytes) else fetch(name, body)


def until_end_of_leases(transaction: Transaction) -> float:
    """Seconds until the first lease is over."""
    held = and_(goes_on, runs.c.lease_until > transaction.now)
    until = transaction.connection.scalar(select(func.min(runs.c.lease_until)).where(held))
    return math.inf if until is None else seconds(until - transaction.now)
