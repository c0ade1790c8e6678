"""The edge names every wrong field and its limit (C1, C5, C41)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fanfold.errors import InvalidArgument
from fanfold.model.step import AgentStepSpec, StepPolicy
from fanfold.model.validation import outcome_from_json, parse_request_id, parse_spec, parse_specs

STEP: dict[str, Any] = {"task_id": "a", "agent": "read", "description": "d", "prompt": "README.md"}


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"task_id": ""}, "task_id", "must not be empty"),
    ({"task_id": 3}, "task_id", "must be a valid string"),
    ({"task_id": None}, "task_id", "must be a valid string"),
    ({"task_id": "x" * 257}, "task_id", "at most 256 characters"),
    ({"task_id": "a\nb"}, "task_id", "no control characters"),
    ({"agent": "x" * 129}, "agent", "at most 128 characters"),
    ({"description": ""}, "description", "must not be empty"),
    ({"prompt": ""}, "prompt", "must not be empty"),
    ({"prompt": b"bytes"}, "prompt", "must be a valid string"),
    ({"prompt": "\ud800"}, "prompt", "valid Unicode"),
    ({"max_steps": 0}, "max_steps", "greater than or equal to 1"),
    ({"max_steps": "3"}, "max_steps", "must be a valid integer"),
    ({"max_steps": True}, "max_steps", "must be a valid integer"),
    ({"max_steps": 10**400}, "max_steps", "less than or equal to 10000"),
    ({"policy": 4}, "policy", "must be a dictionary"),
    ({"policy": {"timeout": 0}}, "policy.timeout", "greater than 0"),
    ({"policy": {"timeout": float("nan")}}, "policy.timeout", "must be"),
    ({"policy": {"timeout": 1e9}}, "policy.timeout", "less than or equal to 604800"),
    ({"policy": {"timeout": 0.0005}}, "policy.timeout", "must be whole milliseconds"),
    ({"policy": {"max_attempts": 101}}, "policy.max_attempts", "less than or equal to 100"),
    ({"policy": {"max_tokens": -1}}, "policy.max_tokens", "greater than or equal to 0"),
    ({"policy": {"node_labels": {"zone": 3}}}, "policy.node_labels.zone", "must be a valid string"),
    ({"policy": {"tiemout": 3}}, "policy.tiemout", "unknown field; did you mean timeout?"),
    ({"promt": "x"}, "promt", "unknown field; did you mean prompt?"),
    ({"unknown_field": "x"}, "unknown_field", "unknown field"),
    ({"unknown_fields": b""}, "unknown_fields", "unknown field"),
]


@pytest.mark.contract("C1", "C5", "C6", "C41")
@pytest.mark.parametrize(("change", "field", "told"), WRONG)
def test_a_wrong_field_is_named_with_its_limit(change: dict[str, Any], field: str, told: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_specs([STEP, {**STEP, **change}])
    violation = caught.value.violations[0]
    assert violation.field == f"steps[1].{field}"
    assert told in violation.description


@pytest.mark.contract("C1")
@pytest.mark.parametrize("field", ["task_id", "agent", "description", "prompt"])
def test_required_fields_are_required(field: str) -> None:
    step = {name: value for name, value in STEP.items() if name != field}
    with pytest.raises(InvalidArgument) as caught:
        parse_spec(step)
    assert [str(violation) for violation in caught.value.violations] == [f"step.{field}: is required"]


def test_everything_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_specs([{}, {**STEP, "task_id": "", "x": 1}], first_index=10)
    assert {violation.field for violation in caught.value.violations} == {
        "steps[10].task_id", "steps[10].agent", "steps[10].description", "steps[10].prompt",
        "steps[11].task_id", "steps[11].x",
    }  # fmt: skip


def test_a_rejected_value_is_not_repeated() -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_spec({**STEP, "task_id": 123456789, "secret-token": "hunter2"})
    assert "123456789" not in caught.value.message
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize("items", [None, 3, "text", b"bytes", {"task_id": "a"}, {1, 2}])
def test_steps_must_be_a_list(items: object) -> None:
    with pytest.raises(InvalidArgument, match="must be a list of steps"):
        parse_specs(items)


def test_a_spec_built_by_hand_is_checked_as_well() -> None:
    good = parse_spec(STEP)
    assert parse_spec(good) == good
    with pytest.raises(InvalidArgument, match=r"step\.policy\.timeout"):
        parse_spec(replace(good, policy=StepPolicy(timeout=-1)))


@pytest.mark.contract("C1", "C41")
@pytest.mark.parametrize(
    "change",
    [
        *(change for change, field, told in WRONG if not told.startswith("unknown field")),
        {"agent": ""},
        {"task_id": "a\x7f"},
        {"task_id": "\ud800"},
        {"description": "x" * 4097},
        {"description": "two\nlines"},
        {"max_steps": 50.0},
        {"parent_session_id": "x" * 257},
        {"parent_session_id": None},
        {"policy": None},
    ],
)
def test_what_is_wrong_in_a_mapping_is_wrong_in_a_spec_built_by_hand(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as of_mapping:
        parse_specs([STEP, {**STEP, **change}])
    with pytest.raises(InvalidArgument) as of_spec:
        parse_specs([AgentStepSpec(**STEP), AgentStepSpec(**{**STEP, **change})])
    assert [each.field for each in of_spec.value.violations] == [each.field for each in of_mapping.value.violations]


def test_a_right_spec_stays_what_it_is() -> None:
    spec = AgentStepSpec(**STEP)
    assert parse_specs([spec])[0] is spec
    changes: list[dict[str, Any]] = [
        {"prompt": "née"},
        {"max_steps": 3},
        {"parent_session_id": "s"},
        {"output_schema": {}},
    ]
    for change in changes:
        changed = AgentStepSpec(**{**STEP, **change})
        assert parse_specs([spec, changed]) == [spec, changed]


def test_defaults_are_those_of_the_contract() -> None:
    spec = parse_spec(STEP)
    assert spec == AgentStepSpec(
        task_id="a", agent="read", description="d", prompt="README.md", max_steps=50, parent_session_id="",
        output_schema=None, policy=StepPolicy(timeout=None, no_progress_timeout=None, max_tokens=None, max_attempts=2),
    )  # fmt: skip
    assert spec["prompt"] == "README.md"
    with pytest.raises(KeyError):
        spec["unknown_fields"]


def test_an_outcome_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"outcome\.sucess: unknown field"):
        outcome_from_json({"task_id": "a", "agent": "b", "success": True, "sucess": True})


@pytest.mark.contract("C44")
def test_request_ids_are_bounded() -> None:
    assert parse_request_id("") == ""
    assert parse_request_id("x" * 128) == "x" * 128
    with pytest.raises(InvalidArgument, match="request_id"):
        parse_request_id("x" * 129)
    with pytest.raises(InvalidArgument, match="request_id"):
        parse_request_id("a\0b")
