"""Checkpoints as JSON: without loss, and nothing but whole records of versions that are known (C5, C7)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from fanfold.errors import FailedPrecondition, InvalidArgument
from fanfold.model.checkpoint import StepRecord, WorkflowCheckpoint
from fanfold.model.checkpoint_form import checkpoint_from_json, checkpoint_to_json
from fanfold.model.step import FailureCode, SourceAnchor, StepFailure, StepOutcome, Usage

pytestmark = pytest.mark.contract("C5", "C7")

NOW = datetime(2026, 3, 1, 12, 30, 15, 123456, UTC)
OUTCOME = StepOutcome(
    task_id="a",
    agent="reviewer",
    success=True,
    session_id="s-1",
    output="naïve ☃\n\ttabs",
    structured={"large": 2**70, "nested": [None, True, 1.5, "x"], "empty": {}},
    source_anchors=(SourceAnchor(tool="read", url_or_path="a.md", lines="3-17"),),
    usage=Usage(input_tokens=2**40, output_tokens=7, requests=2),
    attempts=2,
    node="node-1",
    started_at=NOW,
    ended_at=NOW,
)
CHECKPOINT = WorkflowCheckpoint(
    workflow_id="release-audit",
    records=[
        StepRecord(key="a", fingerprint="0" * 64, outcome=OUTCOME),
        StepRecord(key="3.0", fingerprint="f" * 64, outcome=replace(OUTCOME, task_id="b", structured=None)),
    ],
    updated_at=NOW,
)


def form() -> dict[str, Any]:
    """The form of a checkpoint, as it comes back from a file."""
    read: dict[str, Any] = json.loads(json.dumps(checkpoint_to_json(CHECKPOINT)))
    return read


def test_a_checkpoint_survives_json() -> None:
    assert checkpoint_from_json(form()) == CHECKPOINT
    empty = WorkflowCheckpoint(workflow_id="w")
    assert checkpoint_from_json(checkpoint_to_json(empty)) == replace(empty, records=[])


def test_the_form_has_snake_case_names_and_a_digest_in_each_record() -> None:
    read = form()
    assert list(read) == ["schema_version", "workflow_id", "updated_at", "records"]
    assert (read["schema_version"], read["updated_at"]) == (1, "2026-03-01T12:30:15.123456Z")
    assert list(read["records"][0]) == ["key", "fingerprint", "outcome", "digest"]
    assert read["records"][0]["outcome"]["structured"]["large"] == 2**70
    assert len({record["digest"] for record in read["records"]}) == 2


def test_digests_stay_what_they_are() -> None:
    """Whoever has exported with this release must be able to import with the next one."""
    record = StepRecord(
        key="a", fingerprint="0" * 64, outcome=StepOutcome(task_id="a", agent="noop", success=True, output="hi")
    )
    read = checkpoint_to_json(WorkflowCheckpoint(workflow_id="w", records=[record]))
    assert read["records"][0]["digest"] == "e6251cd39be3f2e02731545a59987d2e7d9febbb378d0aa76390a9f8a3950c2d"


def set_at(*path: int | str, value: Any) -> Callable[[dict[str, Any]], None]:
    """What puts a value at a place of a form."""

    def change(changed: Any) -> None:
        for part in path[:-1]:
            changed = changed[part]
        changed[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (set_at("records", 1, "outcome", "output", value="forged"), "checkpoint.records[1].digest: does not fit"),
        (set_at("records", 0, "key", value="b"), "checkpoint.records[0].digest: does not fit"),
        (set_at("records", 0, "fingerprint", value="1" * 64), "checkpoint.records[0].digest: does not fit"),
        (set_at("workflow_id", value="another"), "checkpoint.records[0].digest: does not fit"),
        (set_at("records", 0, "digest", value="x"), "checkpoint.records[0].digest: must be SHA-256"),
        (set_at("records", 0, "fingerprint", value="F" * 64), "checkpoint.records[0].fingerprint: must be SHA-256"),
        (set_at("records", 0, "note", value=1), "checkpoint.records[0].note: unknown field"),
        (set_at("records", 0, "outcome", "note", value=1), "checkpoint.records[0].outcome.note: unknown field"),
        (
            set_at("records", 0, "outcome", "unknown_fields", value=""),
            "checkpoint.records[0].outcome.unknown_fields: unknown field",
        ),
        (set_at("note", value=1), "checkpoint.note: unknown field"),
        (set_at("workflow_id", value=""), "checkpoint.workflow_id: must not be empty"),
        (set_at("workflow_id", value="two\nlines"), "checkpoint.workflow_id: must have no control characters"),
        (set_at("records", value={}), "checkpoint.records: must be a valid array"),
        (set_at("records", 0, value=7), "checkpoint.records[0]"),
        (set_at("updated_at", value="yesterday"), "checkpoint.updated_at: must be"),
        (set_at("schema_version", value="1"), "checkpoint.schema_version: must be a version"),
        (set_at("schema_version", value=0), "checkpoint.schema_version: must be a version"),
        (set_at("schema_version", value=True), "checkpoint.schema_version: must be a version"),
    ],
)
def test_what_is_wrong_is_refused_by_name(change: Callable[[dict[str, Any]], None], told: str) -> None:
    read = form()
    change(read)
    with pytest.raises(InvalidArgument) as caught:
        checkpoint_from_json(read)
    assert str(caught.value).startswith(told), str(caught.value)


@pytest.mark.parametrize("field", ["schema_version", "workflow_id", "records"])
def test_what_is_missing_is_named(field: str) -> None:
    read = form()
    del read[field]
    with pytest.raises(InvalidArgument, match=rf"checkpoint\.{field}: "):
        checkpoint_from_json(read)


@pytest.mark.parametrize("wrong", [None, [], "text", 7])
def test_what_is_no_object_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="checkpoint: must be an object"):
        checkpoint_from_json(wrong)


def test_records_of_failed_steps_are_refused() -> None:
    failure = StepFailure(code=FailureCode.AGENT_FAILED, message="no")
    failed = StepRecord(key="a", fingerprint="0" * 64, outcome=replace(OUTCOME, success=False, failure=failure))
    with pytest.raises(InvalidArgument, match=r"records\[0\]\.outcome\.success: must be true"):
        checkpoint_from_json(checkpoint_to_json(replace(CHECKPOINT, records=[failed])))


def test_a_newer_version_is_refused_whatever_else_is_in_it() -> None:
    for read in ({**form(), "schema_version": 2}, {"schema_version": 99, "shape": "unheard of"}):
        with pytest.raises(FailedPrecondition, match="this release knows versions up to 1") as caught:
            checkpoint_from_json(read)
        assert caught.value.reason == "CHECKPOINT_TOO_NEW"
