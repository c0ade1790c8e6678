"""What a run's steps are checked for before anything starts, and how often (C20)."""

from __future__ import annotations

from typing import Any, cast

import pytest

from coordinator.config import Limits
from coordinator.runs.checks import RequestChecks
from fanfold.errors import InvalidArgument
from fanfold.model.step import AgentStepSpec
from fanfold.model.validation import parse_specs
from fanfold.schema import SchemaValidator
from fanfold.v1 import step_pb2
from fanfold.wire.step import spec_from_proto

STEPS = 5000


class CountingValidator:
    """Keeps what it is asked to check, and refuses what is called bad."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, str, str]] = []

    async def check(self, schema: object, *, field: str = "output_schema", owner: str = "") -> None:
        self.asked.append((schema, field, owner))
        if schema == {"bad": True}:
            raise InvalidArgument.of_field(field, "it is bad")


def counted_checks() -> tuple[RequestChecks, CountingValidator]:
    validator = CountingValidator()
    return RequestChecks(cast(SchemaValidator, validator), Limits()), validator


def step(number: int, schema: Any = None) -> AgentStepSpec:
    return AgentStepSpec(task_id=str(number), agent="a", description="d", prompt="p", output_schema=schema)


@pytest.mark.contract("C20")
async def test_a_schema_that_many_steps_share_is_checked_once() -> None:
    checks, validator = counted_checks()
    shared, other = {"type": "string"}, {"type": "number"}
    specs = [step(number, shared) for number in range(STEPS)] + [step(STEPS), step(STEPS + 1, other)]
    await checks.check(specs, owner="alice")
    assert validator.asked == [
        (shared, "steps[0].output_schema", "alice"),
        (other, f"steps[{STEPS + 1}].output_schema", "alice"),
    ]


@pytest.mark.contract("C20")
async def test_a_schema_is_shared_from_the_wire_to_the_check() -> None:
    checks, validator = counted_checks()
    message = step_pb2.AgentStepSpec(agent="a", description="d", prompt="p", output_schema_json='{"type":"string"}')
    schemas: dict[str, Any] = {}
    specs = []
    for number in range(STEPS):
        message.task_id = str(number)
        specs.append(spec_from_proto(message, path=f"steps[{number}]", schemas=schemas))
    await checks.check(parse_specs(specs), owner="alice")
    assert len(validator.asked) == 1


@pytest.mark.contract("C20", "C41")
async def test_the_first_step_with_a_bad_schema_is_named() -> None:
    checks, _ = counted_checks()
    with pytest.raises(InvalidArgument) as caught:
        await checks.check([step(0, {}), step(1), step(2, {"bad": True}), step(3, {"bad": True})], owner="o")
    assert [violation.field for violation in caught.value.violations] == ["steps[2].output_schema"]
    with pytest.raises(InvalidArgument) as caught:
        await checks.check([step(0, {"bad": True})], owner="o", path="step")
    assert [violation.field for violation in caught.value.violations] == ["step.output_schema"]


async def test_false_is_a_schema_too() -> None:
    checks, validator = counted_checks()
    await checks.check([step(0, False), step(1, False)], owner="o")
    assert len(validator.asked) == 1
