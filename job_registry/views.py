"""Jobs as callers see them."""

from __future__ import annotations

from fanfold.model.job import Job
from job_registry.live import LiveJob
from job_registry.store.store import KeptJob


def view_of_kept(kept: KeptJob) -> Job:
    """A job as the store keeps it."""
    return Job(
        id=kept.id,
        kind=kept.kind,
        label=kept.label,
        state=kept.state,
        owner=kept.owner,
        parent=kept.parent,
        progress=kept.progress,
        detail=kept.standing.detail,
        stop_reason=kept.standing.stop_reason,
        sources=tuple(kept.sources),
        has_result=kept.result_bytes is not None,
        created_at=kept.created_at,
        settled_at=kept.settled_at,
    )


def view_of_live(live: LiveJob, now: float) -> Job:
    """A job as it is in memory, which is ahead of the store where it is held here; unless it has ended."""
    kept = live.kept
    if live.ended.is_set():
        return view_of_kept(kept)
    return Job(
        id=kept.id,
        kind=kept.kind,
        label=kept.label,
        state=kept.state,
        owner=kept.owner,
        parent=kept.parent,
        progress=live.progress,
        stop_reason=kept.standing.stop_reason,
        waiting_on=live.waiting_on(now),
        sources=tuple(kept.sources if live.held is None else (ring.source for ring in live.held.rings.values())),
        created_at=kept.created_at,
    )
