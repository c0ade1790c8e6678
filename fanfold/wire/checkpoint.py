"""Records of checkpoints (`run.proto`), with the digest that shows whether one was changed on its way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TypeVar

from fanfold.errors import InvalidArgument
from fanfold.model.checkpoint import StepRecord, WorkflowCheckpoint
from fanfold.model.checkpoint_form import check_records, digest_of, refuse_newer
from fanfold.model.validation import check_outcome, parse_line
from fanfold.parts import LargeTexts, TextField, Texts
from fanfold.v1 import coordinator_pb2 as coordinator_pb
from fanfold.v1 import run_pb2 as pb
from fanfold.wire.ahead import PartsAhead, batches_with_parts
from fanfold.wire.batches import batches
from fanfold.wire.parts import outcome_with_texts
from fanfold.wire.step import outcome_from_proto, outcome_to_proto
from fanfold.wire.time import set_timestamp, time_from_proto

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


Message = TypeVar("Message", coordinator_pb.GetCheckpointResponse, coordinator_pb.PutCheckpointRequest)


def checkpoint_messages(
    checkpoint: WorkflowCheckpoint, new_message: Callable[[], Message], *, in_parts: bool
) -> Iterator[Message]:
    """The messages that carry a checkpoint, in each of which is which one that is.

    With `in_parts` the large texts of a record go in parts ahead of it; else a record is one message, however large.
    """

    def write(record: StepRecord, message: pb.StepRecord, large: LargeTexts | None = None) -> pb.StepRecord:
        return record_into(record, checkpoint.workflow_id, message, large)

    def add(record: StepRecord, message: Message) -> pb.StepRecord:
        return write(record, message.checkpoint.records.add())

    if not checkpoint.records:
        messages: Iterator[Message] = iter([new_message()])
    elif in_parts:
        messages = batches_with_parts(
            checkpoint.records, new_message, lambda message, _: message.checkpoint.records, write
        )
    else:
        messages = batches(checkpoint.records, new_message, add)
    for message in messages:
        if not message.HasField("part"):
            message.checkpoint.schema_version = checkpoint.schema_version
            message.checkpoint.workflow_id = checkpoint.workflow_id
            if checkpoint.updated_at is not None:
                set_timestamp(message.checkpoint.updated_at, checkpoint.updated_at)
        yield message


def record_into(
    record: StepRecord, workflow_id: str, message: pb.StepRecord, large: LargeTexts | None = None
) -> pb.StepRecord:
    """Write a record into a message, but for texts that are lifted out of it, and give that back."""
    message.key = record.key
    message.fingerprint = record.fingerprint
    outcome_to_proto(record.outcome, message.outcome, large)
    message.digest = digest_of(record, workflow_id)
    return message


class CheckpointReader:
    """Puts a checkpoint together from the messages that carry it. The workflow may be left to be the one they tell."""

    def __init__(self, workflow_id: str = "") -> None:
        self.workflow_id = workflow_id
        self.records: list[StepRecord] = []
        self.updated_at: datetime | None = None
        self._ahead = PartsAhead(TextField.OUTPUT, TextField.STRUCTURED_JSON)

    def take(self, message: coordinator_pb.GetCheckpointResponse | coordinator_pb.PutCheckpointRequest) -> None:
        """Take the next message.

        Raises:
            InvalidArgument: a record is none of a successful step, was changed, or belongs to another workflow.
            FailedPrecondition: the checkpoint is of a newer version.
        """
        if message.HasField("part"):
            self._ahead.add(message.part)
            return
        checkpoint = message.checkpoint
        refuse_newer(checkpoint.schema_version)
        self.workflow_id = self.workflow_id or parse_line(
            checkpoint.workflow_id, path="checkpoint.workflow_id", required=True
        )
        if checkpoint.workflow_id != self.workflow_id:
            raise InvalidArgument.of_field("checkpoint.workflow_id", f"must be {self.workflow_id!r} in every message")
        if self._ahead and len(checkpoint.records) != 1:
            raise InvalidArgument.of_field("checkpoint.records", "must be the one whose texts came in parts")
        self._take_records(checkpoint.records)
        if checkpoint.HasField("updated_at"):
            self.updated_at = time_from_proto(checkpoint.updated_at)

    def checkpoint(self) -> WorkflowCheckpoint:
        """All of it, once the last message was taken. Raises InvalidArgument if something is missing."""
        if not self.workflow_id:
            raise InvalidArgument.of_field("checkpoint", "is required")
        self._ahead.refuse_rest()
        return WorkflowCheckpoint(workflow_id=self.workflow_id, records=self.records, updated_at=self.updated_at)

    def _take_records(self, messages: Sequence[pb.StepRecord]) -> None:
        first, texts = len(self.records), self._ahead.taken()
        records = [
            _record(message, f"checkpoint.records[{index}]", texts) for index, message in enumerate(messages, first)
        ]
        digests = [message.digest for message in messages]
        check_records(list(zip(records, digests, strict=True)), self.workflow_id, first_index=first)
        self.records += records


def _record(message: pb.StepRecord, path: str, texts: Texts) -> StepRecord:
    parse_line(message.key, path=f"{path}.key", most=256, required=True)
    if not _FINGERPRINT.fullmatch(message.fingerprint):
        raise InvalidArgument.of_field(f"{path}.fingerprint", "must be SHA-256 in lower-case hexadecimal")
    outcome = outcome_from_proto(message.outcome)
    outcome = outcome_with_texts(outcome, texts) if texts else outcome
    check_outcome(outcome, path=f"{path}.outcome")
    return StepRecord(key=message.key, fingerprint=message.fingerprint, outcome=outcome)
