"""Structured output: what satisfies the step's schema, or OUTPUT_INVALID with the text kept (C20, F14)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Protocol

from executor_node.workers.messages import Result
from fanfold.errors import FanfoldError
from fanfold.model.step import FailureCode, StepFailure


class Validator(Protocol):
    """Says whether values satisfy schemas; `fanfold.schema.SchemaValidator` does."""

    async def validate(self, schema: object, value: object, *, owner: str = "") -> str | None:
        """Why the value is not valid, in one line; None if it is. Raises FanfoldError if that cannot be told."""
        ...


async def check_result(result: Result, schema: object, validator: Validator) -> tuple[Result, Any]:
    """The result, which is a failed one if no value in it satisfies the schema, and the value that does.

    The value is the structured one if the agent gave any, else its output read as JSON.
    """
    text = result.output if result.structured_json is None else result.structured_json
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        return _failed(result, FailureCode.OUTPUT_INVALID, "the output is nested too deep"), None
    except ValueError as error:
        return _failed(result, FailureCode.OUTPUT_INVALID, f"the output is not JSON: {error}"), None
    try:
        fault = await validator.validate(schema, value)
    except FanfoldError as error:
        failed = _failed(result, FailureCode.INTERNAL, f"it could not be validated: {error.message}", retryable=True)
        return failed, None
    if fault is not None:
        return _failed(result, FailureCode.OUTPUT_INVALID, fault), None
    return result, value


def _failed(result: Result, code: FailureCode, why: str, *, retryable: bool = False) -> Result:
    note = f"[structured output failed: {why}]"
    output = f"{result.output}\n{note}" if result.output else note
    return replace(result, output=output, failure=StepFailure(code=code, message=why, retryable=retryable))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON value")
