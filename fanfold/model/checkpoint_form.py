"""The JSON form of checkpoints: exported from one mesh, imported into another (C5, C7, C19).

Each record carries a digest, so that a record which was changed on its way, or belongs to another workflow, is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fanfold.errors import FailedPrecondition, FieldViolation, InvalidArgument
from fanfold.model.checkpoint import CHECKPOINT_VERSION, StepRecord, WorkflowCheckpoint
from fanfold.model.checks import Identifier, Must, Text, WorkflowId
from fanfold.model.forms import checked_json
from fanfold.model.step import FORBID_EXTRA, StepOutcome
from fanfold.model.validation import outcome_to_json, time_to_json

_PATH = "checkpoint"
_SHA_256 = re.compile(r"[0-9a-f]{64}")

Hash = Annotated[Text, Must("be SHA-256 in lower-case hexadecimal", lambda text: _SHA_256.fullmatch(text) is not None)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _RecordForm:
    __pydantic_config__ = FORBID_EXTRA

    key: Identifier
    fingerprint: Hash
    outcome: StepOutcome
    digest: Hash


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckpointForm:
    __pydantic_config__ = FORBID_EXTRA

    schema_version: int
    workflow_id: WorkflowId
    records: list[_RecordForm]
    updated_at: datetime | None = None


def checkpoint_to_json(checkpoint: WorkflowCheckpoint) -> dict[str, Any]:
    """The JSON form of a checkpoint: snake_case names, times in RFC 3339, a digest in each record."""
    return {
        "schema_version": checkpoint.schema_version,
        "workflow_id": checkpoint.workflow_id,
        "updated_at": checkpoint.updated_at and time_to_json(checkpoint.updated_at),
        "records": [
            {
                "key": record.key,
                "fingerprint": record.fingerprint,
                "outcome": outcome_to_json(record.outcome),
                "digest": digest_of(record, checkpoint.workflow_id),
            }
            for record in checkpoint.records
        ],
    }


def checkpoint_from_json(form: object) -> WorkflowCheckpoint:
    """The checkpoint that a JSON form stands for; forms of older versions load too.

    Raises:
        FailedPrecondition: it is of a newer version than this release knows (reason CHECKPOINT_TOO_NEW).
        InvalidArgument: it is no checkpoint, or a record was changed; names every wrong field.
    """
    if not isinstance(form, Mapping):
        raise InvalidArgument.of_field(_PATH, f"must be an object, not {type(form).__name__}")
    version = form.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise InvalidArgument.of_field(f"{_PATH}.schema_version", "must be a version of checkpoints, from 1")
    refuse_newer(version)
    return _LOADERS[version](form)


def refuse_newer(version: int) -> None:
    """Raise FailedPrecondition for a version that only newer releases know."""
    if version > CHECKPOINT_VERSION:
        raise FailedPrecondition(
            f"the checkpoint is of version {version}; this release knows versions up to {CHECKPOINT_VERSION}",
            reason="CHECKPOINT_TOO_NEW",
        )


def check_records(records: Sequence[tuple[StepRecord, str]], workflow_id: str, *, first_index: int = 0) -> None:
    """Look whether records, each with its digest, are whole and of this workflow, and of successful steps.

    Raises:
        InvalidArgument: names every wrong one; the first is taken to stand at `first_index`.
    """
    violations = [
        FieldViolation(f"{_PATH}.records[{index}].{field}", why)
        for index, (record, digest) in enumerate(records, start=first_index)
        for field, why in _faults(record, digest, workflow_id)
    ]
    if violations:
        raise InvalidArgument(violations=violations)


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


def _faults(record: StepRecord, digest: str, workflow_id: str) -> Iterator[tuple[str, str]]:
    if not record.outcome.success:
        yield "outcome.success", "must be true: only successful steps are recorded"
    elif digest != digest_of(record, workflow_id):
        yield "digest", "does not fit: the record was changed, or is another workflow's"


def _load_version_1(form: Mapping[str, Any]) -> WorkflowCheckpoint:
    _refuse_bytes(form)
    loaded: _CheckpointForm = checked_json(_CheckpointForm, json.dumps(form), path=_PATH)
    records = [
        (StepRecord(key=each.key, fingerprint=each.fingerprint, outcome=each.outcome), each.digest)
        for each in loaded.records
    ]
    check_records(records, loaded.workflow_id)
    return WorkflowCheckpoint(
        workflow_id=loaded.workflow_id, records=[record for record, _ in records], updated_at=loaded.updated_at
    )


_LOADERS: Mapping[int, Callable[[Mapping[str, Any]], WorkflowCheckpoint]] = {1: _load_version_1}
"""What turns the form of each version into a checkpoint."""


def _refuse_bytes(form: Mapping[str, Any]) -> None:
    """Refuse the one field of outcomes that has no JSON form."""
    records = form.get("records")
    for index, record in enumerate(records if isinstance(records, list) else ()):
        outcome = record.get("outcome") if isinstance(record, Mapping) else None
        if isinstance(outcome, Mapping) and "unknown_fields" in outcome:
            raise InvalidArgument.of_field(f"{_PATH}.records[{index}].outcome.unknown_fields", "unknown field")
