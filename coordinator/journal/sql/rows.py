"""Between rows and runs."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Row

from coordinator.journal.journal import Append, Holder, KeptRun, NewRun
from fanfold.model.run import Budget, Run, RunKind, RunState, StepCounts
from fanfold.sql.instants import moment, seconds

NOBODY = 0
"""`lease_until` of a run that nobody holds, because it has ended or was let go."""


_KINDS = {kind.value: kind for kind in RunKind}
"""Runs of a kind that only a newer release knows are shown, but never claimed."""


def kept_run(row: Row[Any], now: int) -> KeptRun:
    """The run of a row of `runs`, as it stands at `now`."""
    is_held = row.lease_until != NOBODY
    return KeptRun(
        run=_run(row),
        request_id=row.request_id,
        request_digest=row.request_digest,
        holder=Holder(name=row.holder, address=row.address) if is_held else Holder(name="", address=""),
        epoch=row.epoch,
        lease_left=seconds(row.lease_until - now) if is_held else 0.0,
        held_since=moment(row.held_since),
        nodes=tuple(json.loads(row.nodes)),
        last_sequence=row.last_sequence,
        cancel_reason=row.cancel_reason,
    )


def _run(row: Row[Any]) -> Run:
    return Run(
        run_id=row.run_id,
        kind=_KINDS.get(row.kind, RunKind.PARALLEL),
        state=RunState(row.state),
        workflow_id=row.workflow_id,
        owner=row.owner,
        attached=row.attached,
        job_id=row.job_id,
        steps=StepCounts(total=row.total, running=row.running, succeeded=row.succeeded, failed=row.failed),
        budget=_budget(row),
        waiting_on=row.waiting_on,
        created_at=moment(row.created_at),
        ended_at=None if row.ended_at is None else moment(row.ended_at),
        coordinator=row.holder,
        reason=row.reason,
    )


def _budget(row: Row[Any]) -> Budget | None:
    if row.budget_limit is None:
        return None
    return Budget(limit=row.budget_limit, spent=row.budget_spent, refused_steps=row.budget_refused)


def new_row(new: NewRun, holder: Holder, created_at: int, now: int, lease: int) -> dict[str, Any]:
    """The row of a new run that is held for `lease` microseconds from `now`."""
    run = new.run
    return {
        "run_id": run.run_id,
        "owner": run.owner,
        "kind": run.kind.value,
        "workflow_id": run.workflow_id,
        "request_id": new.request_id,
        "request_digest": new.request_digest,
        "attached": run.attached,
        "job_id": run.job_id,
        "created_at": created_at,
        "ended_at": None,
        **holding(holder, now, lease),
        "epoch": 1,
        "nodes": "[]",
        **standing(RunState.PENDING, run.steps, run.waiting_on, run.reason),
        **budget_columns(run.budget),
        "cancel_reason": None,
        "last_sequence": 0,
        "swept_sequence": 0,
    }


def holding(holder: Holder, now: int, lease: int) -> dict[str, Any]:
    """The columns that say who holds a run from `now` on."""
    return {"holder": holder.name, "address": holder.address, "held_since": now, "lease_until": now + lease}


def standing(state: RunState, steps: StepCounts, waiting_on: str, reason: str) -> dict[str, Any]:
    """The columns that say how a run stands."""
    return {
        "state": state.value,
        "total": steps.total,
        "running": steps.running,
        "succeeded": steps.succeeded,
        "failed": steps.failed,
        "waiting_on": waiting_on,
        "reason": reason,
    }


def budget_columns(budget: Budget | None) -> dict[str, Any]:
    """The columns of a budget."""
    if budget is None:
        return {"budget_limit": None, "budget_spent": None, "budget_refused": None}
    return {"budget_limit": budget.limit, "budget_spent": budget.spent, "budget_refused": budget.refused_steps}


def append_columns(append: Append, now: int) -> dict[str, Any]:
    """The columns that change with an append."""
    columns = standing(append.state, append.steps, append.waiting_on, append.reason)
    if append.budget is not None:
        columns |= budget_columns(append.budget)
    if append.entries:
        columns["last_sequence"] = append.entries[-1].sequence
    if append.state is not RunState.RUNNING:
        columns |= {"ended_at": now, "lease_until": NOBODY}
    return columns
