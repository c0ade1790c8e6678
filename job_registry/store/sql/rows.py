"""Between rows and jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row

from fanfold.model.job import JobState, OutputSource
from fanfold.model.trace import TraceContext
from fanfold.sql.instants import moment
from job_registry.states import RUNNING, Standing
from job_registry.store.store import KeptJob, NewJob


def kept_job(row: Row[Any]) -> KeptJob:
    """The job of a row of `jobs`."""
    return KeptJob(
        number=row.number,
        kind=row.kind,
        owner=row.owner,
        producer=row.producer,
        request_id=row.request_id,
        epoch=row.epoch,
        holder=row.holder,
        hold=row.hold,
        label=row.label,
        parent=row.parent,
        holds=row.holds,
        standing=Standing(
            state=JobState(row.state), detail=row.detail, stop_reason=row.stop_reason, given_up=row.given_up
        ),
        progress=row.progress,
        sources=sources_of(row.sources),
        result_bytes=row.result_bytes,
        created_at=moment(row.created_at),
        settled_at=None if row.settled_at is None else moment(row.settled_at),
        change=row.change,
        deleted=row.deleted,
        trace=TraceContext(row.traceparent, row.tracestate) if row.traceparent else None,
    )


def new_row(new: NewJob, now: int, change: int) -> dict[str, Any]:
    """The row of a new job."""
    return {
        "number": new.number,
        "kind": new.kind,
        "owner": new.owner,
        "producer": new.producer,
        "request_id": new.request_id,
        "epoch": new.epoch,
        "holder": new.holder,
        "hold": 1,
        "label": new.label,
        "parent": new.parent,
        "holds": new.holds,
        **standing_columns(RUNNING),
        "progress": "",
        "sources": sources_text([OutputSource(name=name) for name in new.sources]),
        "result_bytes": None,
        "created_at": now,
        "settled_at": None,
        "change": change,
        "deleted": False,
        "traceparent": "" if new.trace is None else new.trace.traceparent,
        "tracestate": "" if new.trace is None else new.trace.tracestate,
    }


def standing_columns(standing: Standing) -> dict[str, Any]:
    """The columns that say where a job stands."""
    return {
        "state": standing.state.value,
        "detail": standing.detail,
        "stop_reason": standing.stop_reason,
        "given_up": standing.given_up,
    }


def sources_text(sources: Sequence[OutputSource]) -> str:
    """Sources as they are kept."""
    rows = [[source.name, source.total_bytes, source.earliest_offset, source.lossy] for source in sources]
    return json.dumps(rows, separators=(",", ":"))


def with_source(text: str, changed: OutputSource) -> str:
    """Kept sources with one of them changed."""
    return sources_text([changed if source.name == changed.name else source for source in sources_of(text)])


def sources_of(text: str) -> tuple[OutputSource, ...]:
    """Sources from what is kept."""
    return tuple(
        OutputSource(name=name, total_bytes=total, earliest_offset=earliest, lossy=lossy)
        for name, total, earliest, lossy in json.loads(text)
    )
