"""Fingerprints: what makes a step another piece of work, and what only describes it (C7)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from fanfold.model.checkpoint import fingerprint, hash_of_item
from fanfold.model.step import AgentStepSpec, StepPolicy

SPEC = AgentStepSpec(
    task_id="a", agent="noop", description="d", prompt="Grüße", output_schema={"type": "object", "title": "x"}
)

pytestmark = pytest.mark.contract("C7")


def test_it_is_sha_256_over_canonical_json() -> None:
    text = '{"agent":"noop","max_steps":50,"output_schema":{"title":"x","type":"object"},"prompt":"Grüße"}'
    assert fingerprint(SPEC) == hashlib.sha256(text.encode()).hexdigest()


def test_the_item_and_what_must_be_escaped_are_in_it_as_canonical_json_has_them() -> None:
    spec = AgentStepSpec(task_id="a", agent='quo"te', description="d", prompt="line\nend \\ \u2028", max_steps=7)
    work = {"agent": spec.agent, "item": "abc", "max_steps": 7, "output_schema": None, "prompt": spec.prompt}
    text = json.dumps(work, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    assert fingerprint(spec, "abc") == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "changed", [{"agent": "b"}, {"prompt": "b"}, {"max_steps": 51}, {"output_schema": {"type": "array"}}]
)
def test_what_changes_the_work_changes_it(changed: dict[str, object]) -> None:
    assert fingerprint(replace(SPEC, **changed)) != fingerprint(SPEC)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changed",
    [
        {"task_id": "b"},
        {"description": "b"},
        {"parent_session_id": "b"},
        {"policy": StepPolicy(max_attempts=9)},
        {"output_schema": {"title": "x", "type": "object"}},
    ],
)
def test_what_only_describes_it_does_not(changed: dict[str, object]) -> None:
    assert fingerprint(replace(SPEC, **changed)) == fingerprint(SPEC)  # type: ignore[arg-type]


def test_the_item_of_a_pipeline_is_part_of_it() -> None:
    assert hash_of_item({"b": 1, "a": [2]}) == hash_of_item({"a": [2], "b": 1}) != hash_of_item({"a": [2], "b": 2})
    assert fingerprint(SPEC, hash_of_item(1)) != fingerprint(SPEC, hash_of_item("1"))
