"""Checkpoints of workflows, from and to the journal (C7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from coordinator.journal.journal import Journal, Record
from coordinator.runs.recall import outcome_of
from fanfold.errors import FieldViolation, InvalidArgument, NotFound
from fanfold.model.checkpoint import StepRecord, WorkflowCheckpoint
from fanfold.model.run import RunStepEvent
from fanfold.model.step import StepEnded, StepOutcome
from fanfold.wire.run import event_to_bytes


async def checkpoint_of(journal: Journal, owner: str, workflow_id: str) -> WorkflowCheckpoint:
    """The checkpoint of a workflow. Raises NotFound if nothing is recorded."""
    records = tuple(_readable(await journal.records(owner, workflow_id)))
    if not records:
        raise NotFound(f"no checkpoint of a workflow {workflow_id!r} is kept")
    return WorkflowCheckpoint(workflow_id=workflow_id, records=records)


async def keep_checkpoint(journal: Journal, owner: str, checkpoint: WorkflowCheckpoint) -> None:
    """Keep a checkpoint in place of what is recorded of its workflow.

    Raises:
        InvalidArgument: a key is given twice.
        Aborted: the workflow runs here.
    """
    _refuse_duplicates(checkpoint)
    kept = [Record(each.key, each.fingerprint, _ending(each.outcome)) for each in checkpoint.records]
    await journal.put_records(owner, checkpoint.workflow_id, kept)


def _readable(records: Iterable[Record]) -> Iterator[StepRecord]:
    for record in records:
        outcome = outcome_of(record)
        if outcome is not None:
            yield StepRecord(key=record.key, fingerprint=record.fingerprint, outcome=outcome)


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
