"""Specs and outcomes survive protobuf and JSON (C5)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.errors import InvalidArgument
from fanfold.model.step import (
    AgentStepSpec,
    AttemptStarted,
    FailureCode,
    SourceAnchor,
    StepEnded,
    StepFailure,
    StepOutcome,
    StepPolicy,
    StepProgressed,
    StepStarted,
    TextWritten,
    ToolFinished,
    TurnFinished,
    Usage,
)
from fanfold.model.validation import outcome_from_json, outcome_to_json, parse_spec, spec_to_json
from fanfold.v1 import step_pb2 as pb
from fanfold.wire.step import (
    event_from_proto,
    event_to_proto,
    outcome_from_proto,
    outcome_to_proto,
    spec_from_proto,
    spec_to_proto,
)
from fanfold.wire.values import MAX_JSON_DEPTH

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
line = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=40)
seconds = st.integers(1, 7 * 24 * 3600 * 1000).map(lambda milliseconds: milliseconds / 1000)
times = st.datetimes(datetime(1970, 1, 1), datetime(9000, 1, 1)).map(lambda time: time.replace(tzinfo=UTC))
json_values = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
schemas = st.dictionaries(text, json_values, max_size=4) | st.booleans()

policies = st.builds(
    StepPolicy,
    timeout=st.none() | seconds,
    no_progress_timeout=st.none() | seconds,
    max_tokens=st.none() | st.integers(0, 2**63 - 1),
    max_attempts=st.integers(1, 100),
    node_labels=st.dictionaries(line, line, max_size=3),
)
specs = st.builds(
    AgentStepSpec,
    task_id=line,
    agent=line,
    description=line,
    prompt=text.filter(bool),
    max_steps=st.integers(1, 10_000),
    parent_session_id=st.just("") | line,
    output_schema=st.none() | schemas,
    policy=policies,
)
failures = st.builds(StepFailure, code=st.sampled_from(FailureCode), message=text, retryable=st.booleans())
tokens = st.integers(0, 2**63 - 1)
outcomes = st.builds(
    StepOutcome,
    task_id=line,
    session_id=st.just("") | line,
    agent=line,
    output=text,
    success=st.booleans(),
    structured=st.none() | json_values,
    source_anchors=st.lists(
        st.builds(SourceAnchor, tool=line, url_or_path=text, lines=st.sampled_from(["", "3", "3-17"])), max_size=3
    ).map(tuple),
    failure=st.none() | failures,
    usage=st.builds(Usage, input_tokens=tokens, output_tokens=tokens, requests=tokens),
    attempts=st.integers(0, 100),
    node=st.just("") | line,
    started_at=st.none() | times,
    ended_at=st.none() | times,
    agent_session_id=st.just("") | line,
)


@pytest.mark.contract("C1", "C5", "C6")
@given(specs)
def test_spec_survives_protobuf_and_json(spec: AgentStepSpec) -> None:
    serialized = spec_to_proto(spec).SerializeToString()
    assert spec_from_proto(pb.AgentStepSpec.FromString(serialized)) == spec
    form = json.loads(json.dumps(spec_to_json(spec)))
    assert parse_spec(form) == spec


@pytest.mark.contract("C2", "C4", "C5")
@given(outcomes)
def test_outcome_survives_protobuf_and_json(outcome: StepOutcome) -> None:
    serialized = outcome_to_proto(outcome).SerializeToString()
    assert outcome_from_proto(pb.StepOutcome.FromString(serialized)) == outcome
    assert outcome_from_json(json.loads(json.dumps(outcome_to_json(outcome)))) == outcome


@pytest.mark.contract("C5")
def test_json_form_has_snake_case_names_and_nested_values() -> None:
    form = spec_to_json(
        AgentStepSpec(
            task_id="a", agent="read", description="d", prompt="p", output_schema={"type": "object"},
            policy=StepPolicy(timeout=1.5),
        )
    )  # fmt: skip
    assert form == {
        "task_id": "a",
        "agent": "read",
        "description": "d",
        "prompt": "p",
        "max_steps": 50,
        "parent_session_id": "",
        "output_schema": {"type": "object"},
        "policy": {
            "timeout": 1.5,
            "no_progress_timeout": None,
            "max_tokens": None,
            "max_attempts": 2,
            "node_labels": {},
        },
    }


def _with_unknown(message: Any, number: int, value: bytes) -> bytes:
    """The message as a newer peer would send it: with one more length-delimited field."""
    tag = (number << 3) | 2
    varint = bytes([tag & 0x7F | 0x80, tag >> 7])
    return bytes(message.SerializeToString() + varint + bytes([len(value)]) + value)


@pytest.mark.contract("C5")
def test_fields_of_a_newer_peer_are_passed_on() -> None:
    step = pb.AgentStepSpec(task_id="a", agent="b", description="c", prompt="d", policy=pb.StepPolicy(max_attempts=3))
    policy = _with_unknown(step.policy, 900, b"inner")
    step.policy.ParseFromString(policy)
    received = pb.AgentStepSpec.FromString(_with_unknown(step, 901, b"outer"))

    spec = spec_from_proto(received)
    assert spec.policy.max_attempts == 3
    sent_on = spec_to_proto(spec)
    assert sent_on.SerializeToString(deterministic=True) == received.SerializeToString(deterministic=True)

    outcome = outcome_from_proto(
        pb.StepOutcome.FromString(_with_unknown(pb.StepOutcome(task_id="a", success=True), 902, b"more"))
    )
    assert b"more" in outcome_to_proto(outcome).SerializeToString()


@pytest.mark.contract("C5", "C41")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "must be JSON"),
        ("NaN", "NaN is no JSON value"),
        ("null", "must be a JSON Schema, not null"),
        ("[" * 100_000, f"nested at most {MAX_JSON_DEPTH} deep"),
        ("[" * (MAX_JSON_DEPTH + 1) + "]" * (MAX_JSON_DEPTH + 1), f"nested at most {MAX_JSON_DEPTH} deep"),
        ("1" * 5000, "must be JSON"),
    ],
)
def test_text_that_is_no_usable_json_is_refused_by_name(text: str, told: str) -> None:
    message = pb.AgentStepSpec(output_schema_json=text)
    with pytest.raises(InvalidArgument) as caught:
        spec_from_proto(message, path="steps[7]")
    assert caught.value.violations[0].field == "steps[7].output_schema_json"
    assert told in caught.value.violations[0].description


@pytest.mark.contract("C20")
def test_equal_schema_texts_of_one_request_become_one_value() -> None:
    def schema_of(text: str, known: dict[str, Any] | None) -> Any:
        return spec_from_proto(pb.AgentStepSpec(output_schema_json=text), schemas=known).output_schema

    known: dict[str, Any] = {}
    one = schema_of('{"type":"string"}', known)
    assert schema_of('{"type":"string"}', known) is one
    other = schema_of('{"type":"number"}', known)
    assert other == {"type": "number"}
    assert schema_of('{"type":"string"}', known) is one == {"type": "string"}
    assert schema_of("false", known) is schema_of("false", known) is False
    assert schema_of('{"type":"string"}', {}) is not one, "another request has values of its own"
    assert schema_of('{"type":"string"}', None) is not one


@pytest.mark.contract("C41")
def test_a_schema_text_that_was_refused_is_refused_again_by_its_own_step() -> None:
    known: dict[str, Any] = {}
    for index in range(2):
        with pytest.raises(InvalidArgument) as caught:
            spec_from_proto(pb.AgentStepSpec(output_schema_json="{"), path=f"steps[{index}]", schemas=known)
        assert caught.value.violations[0].field == f"steps[{index}].output_schema_json"


NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


@pytest.mark.contract("C11")
@pytest.mark.parametrize(
    "event",
    [
        StepStarted(task_id="a", time=NOW, session_id="s", node="n"),
        StepProgressed(task_id="a", time=NOW, progress=ToolFinished(name="read", success=False, detail="x")),
        StepProgressed(task_id="a", time=NOW, progress=TurnFinished(turn=2, usage=Usage(input_tokens=3))),
        StepProgressed(task_id="a", time=NOW, progress=TextWritten(text="hello")),
        StepProgressed(
            task_id="a",
            time=NOW,
            progress=AttemptStarted(
                attempt=2, node="n", cause=StepFailure(code=FailureCode.NODE_LOST, message="m", retryable=True)
            ),
        ),
        StepEnded(task_id="a", time=NOW, outcome=StepOutcome(task_id="a", agent="b", success=True)),
    ],
)
def test_every_event_survives_protobuf(event: Any) -> None:
    assert event_from_proto(pb.StepEvent.FromString(event_to_proto(event).SerializeToString())) == event


def test_what_only_a_newer_peer_knows_is_no_error() -> None:
    assert event_from_proto(pb.StepEvent(task_id="a")) is None
    failure = pb.StepOutcome(task_id="a", failure=pb.StepFailure(code=99, message="new"))  # type: ignore[arg-type]
    received = outcome_from_proto(failure).failure
    assert received == StepFailure(code=FailureCode.INTERNAL, message="new")


def test_a_time_outside_rfc_3339_is_refused() -> None:
    message = pb.StepOutcome(task_id="a")
    message.ended_at.seconds = 2**60
    with pytest.raises(InvalidArgument, match="years 1 to 9999"):
        outcome_from_proto(message)
