"""Checkpoints of workflows, from and to the journal (C7)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from coordinator.journal.journal import Journal, Record
from coordinator.runs.recall import outcome_of
from fanfold.errors import FieldViolation, InvalidArgument, NotFound
from fanfold.model.checkpoint import StepRecord, WorkflowCheckpoint
from fanfold.model.run import RunStepEvent
from fanfold.model.step import StepEnded, StepOutcome
from fanfold.wire.run import event_to_bytes

_CHUNK = 500
"""Records converted before others get their turn."""


async def checkpoint_of(journal: Journal, owner: str, workflow_id: str) -> WorkflowCheckpoint:
    """The checkpoint of a workflow, its records by key. Raises NotFound if nothing is recorded."""
    records: list[StepRecord] = []
    for position, record in enumerate(await journal.records(owner, workflow_id)):
        outcome = outcome_of(record)
        if outcome is not None:
            records.append(StepRecord(key=record.key, fingerprint=record.fingerprint, outcome=outcome))
        if position % _CHUNK == 0:
            await asyncio.sleep(0)
    if not records:
        raise NotFound(f"no checkpoint of a workflow {workflow_id!r} is kept")
    records.sort(key=lambda record: record.key)
    ends = [record.outcome.ended_at for record in records if record.outcome.ended_at is not None]
    return WorkflowCheckpoint(workflow_id=workflow_id, records=records, updated_at=max(ends, default=None))


async def keep_checkpoint(journal: Journal, owner: str, checkpoint: WorkflowCheckpoint) -> None:
    """Keep a checkpoint in place of what is recorded of its workflow.

    Raises:
        InvalidArgument: a key is given twice.
        Aborted: the workflow runs here.
    """
    _refuse_duplicates(checkpoint)
    kept: list[Record] = []
    for position, each in enumerate(checkpoint.records):
        kept.append(Record(each.key, each.fingerprint, _ending(each.outcome)))
        if position % _CHUNK == 0:
            await asyncio.sleep(0)
    await journal.put_records(owner, checkpoint.workflow_id, kept)


def _ending(outcome: StepOutcome) -> bytes:
    """The form in which a step's end is kept; the position of an imported one is not known, and not needed."""
    time = outcome.ended_at or datetime.now(UTC)
    ended = StepEnded(task_id=outcome.task_id, time=time, outcome=outcome)
    return event_to_bytes(RunStepEvent(sequence=0, time=time, index=0, event=ended))


def _refuse_duplicates(checkpoint: WorkflowCheckpoint) -> None:
    seen: set[str] = set()
    violations = []
    for index, record in enumerate(checkpoint.records):
        if record.key in seen:
            violations.append(FieldViolation(f"checkpoint.records[{index}].key", f"{record.key!r} is given twice"))
        seen.add(record.key)
    if violations:
        raise InvalidArgument(violations=violations)
