"""Records of checkpoints (`run.proto`), with the digest that shows whether one was changed on its way."""

from __future__ import annotations

import hashlib
import json
import re

from fanfold.errors import InvalidArgument
from fanfold.model.checkpoint import StepRecord
from fanfold.model.validation import check_outcome, outcome_to_json, parse_line
from fanfold.v1 import run_pb2 as pb
from fanfold.wire.step import outcome_from_proto, outcome_to_proto

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def record_into(record: StepRecord, workflow_id: str, message: pb.StepRecord) -> pb.StepRecord:
    """Write a record into a message of a batch, and give that back."""
    message.key = record.key
    message.fingerprint = record.fingerprint
    outcome_to_proto(record.outcome, message.outcome)
    message.digest = digest_of(record, workflow_id)
    return message


def record_from_proto(message: pb.StepRecord, workflow_id: str, *, path: str) -> StepRecord:
    """The record of a workflow.

    Raises:
        InvalidArgument: it is no record of a successful step, was changed, or belongs to another workflow.
    """
    parse_line(message.key, path=f"{path}.key", most=256, required=True)
    if not _FINGERPRINT.fullmatch(message.fingerprint):
        raise InvalidArgument.of_field(f"{path}.fingerprint", "must be SHA-256 in lower-case hexadecimal")
    outcome = outcome_from_proto(message.outcome)
    check_outcome(outcome, path=f"{path}.outcome")
    if not outcome.success:
        raise InvalidArgument.of_field(f"{path}.outcome.success", "must be true: only successful steps are recorded")
    record = StepRecord(key=message.key, fingerprint=message.fingerprint, outcome=outcome)
    if message.digest != digest_of(record, workflow_id):
        raise InvalidArgument.of_field(
            f"{path}.digest", "does not fit: the record was changed, or is another workflow's"
        )
    return record


def digest_of(record: StepRecord, workflow_id: str) -> str:
    """SHA-256 over the canonical JSON of workflow id, key, fingerprint and outcome, in hexadecimal."""
    form = {
        "workflow_id": workflow_id,
        "key": record.key,
        "fingerprint": record.fingerprint,
        "outcome": outcome_to_json(record.outcome),
    }
    text = json.dumps(form, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
