"""Records of checkpoints (`run.proto`), with the digest that shows whether one was changed on its way."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fanfold.errors import InvalidArgument
from fanfold.model.checkpoint import StepRecord, WorkflowCheckpoint
from fanfold.model.checkpoint_form import check_records, digest_of
from fanfold.model.validation import check_outcome, parse_line
from fanfold.v1 import coordinator_pb2 as coordinator_pb
from fanfold.v1 import run_pb2 as pb
from fanfold.wire.batches import batches
from fanfold.wire.step import outcome_from_proto, outcome_to_proto

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def record_into(record: StepRecord, workflow_id: str, message: pb.StepRecord) -> pb.StepRecord:
    """Write a record into a message of a batch, and give that back."""
    message.key = record.key
    message.fingerprint = record.fingerprint
    outcome_to_proto(record.outcome, message.outcome)
    message.digest = digest_of(record, workflow_id)
    return message


def checkpoint_requests(checkpoint: WorkflowCheckpoint) -> Iterator[coordinator_pb.PutCheckpointRequest]:
    """The messages that have a checkpoint kept."""

    def part() -> coordinator_pb.PutCheckpointRequest:
        request = coordinator_pb.PutCheckpointRequest(total_records=len(checkpoint.records))
        request.checkpoint.schema_version = checkpoint.schema_version
        request.checkpoint.workflow_id = checkpoint.workflow_id
        return request

    def add(record: StepRecord, request: coordinator_pb.PutCheckpointRequest) -> pb.StepRecord:
        return record_into(record, checkpoint.workflow_id, request.checkpoint.records.add())

    if checkpoint.records:
        yield from batches(checkpoint.records, part, add)
    else:
        yield part()


def records_from_proto(messages: Sequence[pb.StepRecord], workflow_id: str, *, first_index: int) -> list[StepRecord]:
    """The records of a workflow; the first is taken to stand at `first_index`.

    Raises:
        InvalidArgument: one is no record of a successful step, was changed, or belongs to another workflow.
    """
    records = [_record(message, f"checkpoint.records[{index}]") for index, message in enumerate(messages, first_index)]
    check_records(
        [(record, message.digest) for record, message in zip(records, messages, strict=True)],
        workflow_id,
        first_index=first_index,
    )
    return records


def _record(message: pb.StepRecord, path: str) -> StepRecord:
    parse_line(message.key, path=f"{path}.key", most=256, required=True)
    if not _FINGERPRINT.fullmatch(message.fingerprint):
        raise InvalidArgument.of_field(f"{path}.fingerprint", "must be SHA-256 in lower-case hexadecimal")
    outcome = outcome_from_proto(message.outcome)
    check_outcome(outcome, path=f"{path}.outcome")
    return StepRecord(key=message.key, fingerprint=message.fingerprint, outcome=outcome)
