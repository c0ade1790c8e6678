"""Texts that travel apart from their messages come together again (C5), and peers that take none are spared them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from fanfold.errors import InvalidArgument
from fanfold.model.step import AgentStepSpec, FailureCode, StepEnded, StepFailure, StepOutcome, StepStarted
from fanfold.parts import LargeTexts, Piece, TextField
from fanfold.ports import ExecutionStart
from fanfold.v1 import executor_node_pb2 as link_pb
from fanfold.v1 import step_pb2
from fanfold.wire.link import start_from_proto, start_into, with_texts
from fanfold.wire.parts import (
    event_with_texts,
    follows_from_proto,
    follows_into,
    part_from_proto,
    piece_from_proto,
    piece_to_proto,
    spec_with_texts,
    within,
)
from fanfold.wire.step import event_from_proto, event_to_proto, spec_from_proto, spec_to_proto

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SCHEMA = {"type": "object", "description": "é" * 100}
SPEC = AgentStepSpec(task_id="t", agent="a", description="d", prompt="ж" * 100, output_schema=SCHEMA)
OUTCOME = StepOutcome(task_id="t", agent="a", success=True, output="😀" * 100, structured={"x": ["y" * 200]})


def decoded(texts: dict[TextField, bytes]) -> dict[TextField, str]:
    return {field: data.decode() for field, data in texts.items()}


@pytest.mark.contract("C5")
@pytest.mark.parametrize("limit", [10, 210, 10_000])
def test_a_spec_is_whole_again_with_its_texts(limit: int) -> None:
    large = LargeTexts(limit)
    message = spec_to_proto(SPEC, large=large)
    assert len(large) == (2 if limit == 10 else 1 if limit == 210 else 0)
    assert message.ByteSize() <= 500 - sum(map(len, large.values()))
    assert spec_with_texts(spec_from_proto(message), decoded(large.taken())) == SPEC


@pytest.mark.contract("C5")
@pytest.mark.parametrize("limit", [10, 250, 10_000])
def test_an_outcome_is_whole_again_with_its_texts(limit: int) -> None:
    ended = StepEnded(task_id="t", time=NOW, outcome=OUTCOME)
    large = LargeTexts(limit)
    message = event_to_proto(ended, large=large)
    assert len(large) == (2 if limit == 10 else 1 if limit == 250 else 0)
    event = event_from_proto(message)
    assert event is not None
    assert event_with_texts(event, decoded(large.taken())) == ended


@pytest.mark.contract("C5")
def test_a_start_says_which_texts_follow() -> None:
    start = ExecutionStart(execution_id="e", run_id="r", epoch=3, spec=SPEC, progress=True)
    large = LargeTexts(10)
    message = link_pb.StartExecution()
    start_into(start, message, large)
    texts = large.taken()
    follows_into(texts, message)
    sizes = follows_from_proto(message.follows)
    assert sizes == {
        TextField.PROMPT: 200,
        TextField.OUTPUT_SCHEMA_JSON: len(json.dumps(SCHEMA, ensure_ascii=False, separators=(",", ":")).encode()),
    }
    assert with_texts(start_from_proto(message), decoded(texts)) == start


def test_pieces_cross_a_link_as_they_are() -> None:
    piece = Piece("run-1/t/1.1", TextField.STRUCTURED_JSON, "é".encode()[:1])
    assert piece_from_proto(piece_to_proto(piece)) == piece


@pytest.mark.contract("C41")
def test_texts_that_nobody_knows_are_refused() -> None:
    with pytest.raises(InvalidArgument) as refusal:
        part_from_proto(step_pb2.TextPart(field=step_pb2.TEXT_FIELD_OUTPUT, piece=b"x"), [TextField.PROMPT])
    assert refusal.value.violations[0].field == "part.field"
    assert refusal.value.violations[0].description == "must be one of TEXT_FIELD_PROMPT"
    for field, size in [(0, 5), (99, 5), (1, 0)]:
        with pytest.raises(InvalidArgument, match=f"field {field} of {size} bytes"):
            follows_from_proto([link_pb.TextSize(field=field, bytes=size)])  # type: ignore[arg-type]


@pytest.mark.contract("C5")
def test_texts_that_are_no_json_are_refused_by_field() -> None:
    with pytest.raises(InvalidArgument) as refusal:
        spec_with_texts(SPEC, {TextField.OUTPUT_SCHEMA_JSON: "{"}, path="steps[3]")
    assert refusal.value.violations[0].field == "steps[3].output_schema_json"
    with pytest.raises(InvalidArgument) as refusal:
        event_with_texts(StepEnded(task_id="t", time=NOW, outcome=OUTCOME), {TextField.STRUCTURED_JSON: "nope"})
    assert refusal.value.violations[0].field == "outcome.structured_json"


@pytest.mark.contract("F11")
def test_a_peer_that_takes_no_parts_gets_what_fits_and_why_it_is_not_all() -> None:
    ended = StepEnded(task_id="t", time=NOW, outcome=OUTCOME)
    started = StepStarted(task_id="t", time=NOW)
    assert within(ended, 1000) is ended
    assert within(started, 1) is started
    cut = within(ended, 50)
    assert isinstance(cut, StepEnded)
    assert (cut.outcome.success, cut.outcome.output, cut.outcome.structured) == (False, "😀" * 12, None)
    assert cut.outcome.failure is not None
    assert (cut.outcome.failure.code, cut.outcome.failure.retryable) == (FailureCode.PAYLOAD_TOO_LARGE, False)
    assert "610 bytes" in cut.outcome.failure.message
    assert "at most 50" in cut.outcome.failure.message
    failed = replace(OUTCOME, success=False, failure=StepFailure(code=FailureCode.CRASHED, message="m"))
    cut = within(StepEnded(task_id="t", time=NOW, outcome=failed), 50)
    assert isinstance(cut, StepEnded)
    assert (cut.outcome.failure, cut.outcome.output) == (failed.failure, "😀" * 12), "its own failure is kept"
