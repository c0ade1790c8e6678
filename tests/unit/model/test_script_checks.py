from __future__ import annotations

from typing import Any

import pytest

from fanfold.errors import InvalidArgument
from fanfold.model.script import AgentFailure, ScriptMeta, ScriptPhase, ScriptResult, StopReason
from fanfold.model.script_checks import parse_args, parse_meta, parse_options, parse_parent, result_to_json
from fanfold.model.step import FailureCode, StepFailure


def wrong_in(error: InvalidArgument) -> dict[str, str]:
    return {violation.field: violation.description for violation in error.violations}


@pytest.mark.contract("C22")
def test_meta_is_read_from_a_mapping() -> None:
    meta = parse_meta({"name": "a-b2", "description": "d", "phases": [{"title": "One", "detail": "x"}]})
    assert meta == ScriptMeta(name="a-b2", description="d", phases=(ScriptPhase(title="One", detail="x"),))


@pytest.mark.contract("C22")
@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a--b", "a b", "ä", "a" * 129, 3, None])
def test_a_name_that_is_not_in_kebab_case_is_refused(name: object) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_meta({"name": name, "description": "d"})
    assert set(wrong_in(refused.value)) == {"meta.name"}


@pytest.mark.contract("C22")
def test_every_wrong_field_of_meta_is_named_with_the_nearest_that_there_is() -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_meta({"name": "a", "descripton": "d", "phases": [{"title": "x", "order": 1}]})
    assert wrong_in(refused.value) == {
        "meta.description": "is required",
        "meta.descripton": "unknown field; did you mean description?",
        "meta.phases[0].order": "unknown field",
    }


@pytest.mark.contract("C23", "C24")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"shema": {}}, {"options.shema": "unknown field; did you mean schema?"}),
        ({"maxTokens": 5}, {"options.maxTokens": "unknown field; did you mean max_tokens?"}),
        ({"shema": None}, {"options.shema": "unknown field; did you mean schema?"}),
        ({"max_steps": 0}, {"options.max_steps": "must be greater than or equal to 1"}),
        ({"timeout_ms": 1.5}, {"options.timeout_ms": "must be a valid integer"}),
        ({"timeout_ms": "5"}, {"options.timeout_ms": "must be a valid integer"}),
        ({"label": ""}, {"options.label": "must not be empty"}),
        ({"node_labels": {"zone": 1}}, {"options.node_labels.zone": "must be a valid string"}),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], expected: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_options(options)
    assert wrong_in(refused.value) == expected


@pytest.mark.contract("C23")
def test_options_that_are_null_are_not_given() -> None:
    assert parse_options({"label": None, "node_labels": None, "agent": "a"}) == parse_options({"agent": "a"})


@pytest.mark.contract("C21")
@pytest.mark.parametrize(
    ("parent", "whole"),
    [("alice", "alice"), ("alice/s/t", "alice/s/t"), ("./s", "alice/s"), ("alice/" + "/".join("bcdefgh"), None)],
)
def test_a_parent_within_the_owner_is_taken(parent: str, whole: str | None) -> None:
    assert parse_parent(parent, "alice") == (whole or parent)


@pytest.mark.contract("C21", "C34")
@pytest.mark.parametrize(
    "parent",
    [
        "",
        "bob",
        "alicex",
        "alicex/s",
        "alice/",
        "alice//s",
        "./",
        "./../bob",
        "alice/../bob",
        "/alice",
        "a" * 300,
        "alice/" + "/".join("bcdefghi"),
        "./" + "/".join("bcdefghi"),
        "./" + "x" * 252,
    ],
)
def test_a_parent_that_is_somebody_elses_or_too_deep_is_refused(parent: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_parent(parent, "alice")


@pytest.mark.contract("F13")
@pytest.mark.parametrize(("text", "value"), [("", None), ('"3"', "3"), ("3", 3), ("[1.5, null]", [1.5, None])])
def test_args_are_the_json_value_that_they_say(text: str, value: object) -> None:
    assert parse_args(text) == value
    assert type(parse_args(text)) is type(value)


@pytest.mark.parametrize("text", ["{", "NaN", "Infinity", "[" * 100_000, "9" * 5000, "'x'"])
def test_args_that_are_no_json_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_args(text)


@pytest.mark.contract("C26")
def test_the_json_form_of_a_result() -> None:
    failure = AgentFailure(
        call=2, label="x", phase="p", line=3, failure=StepFailure(code=FailureCode.STALLED, message="m")
    )
    result = ScriptResult(stop_reason=StopReason.COMPLETED, value=[1], agents_started=2, failures=(failure,))
    assert result_to_json(result) == {
        "value": [1],
        "stop_reason": "completed",
        "error": None,
        "agents_started": 2,
        "failures": [
            {
                "call": 2,
                "label": "x",
                "phase": "p",
                "line": 3,
                "failure": {"code": "STALLED", "message": "m", "retryable": False},
            }
        ],
    }
