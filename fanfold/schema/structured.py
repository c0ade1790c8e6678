"""From what an agent gave to a value that satisfies the step's schema, or to why the step failed (C20)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

from fanfold.errors import FanfoldError
from fanfold.model.step import FailureCode, StepFailure

MAX_TEXT = 8 * 2**20
"""Characters of a text that is read as JSON: several times what a value may have, and soon read."""


class Validator(Protocol):
    """Says whether values satisfy schemas; `fanfold.schema.SchemaValidator` does."""

    async def validate(self, schema: object, value: object, *, owner: str = "") -> str | None:
        """Why the value is not valid, in one line; None if it is. Raises FanfoldError if that cannot be told."""
        ...


@dataclass(frozen=True, slots=True)
class Structured:
    """The validated value, or the failure of the step."""

    value: Any = None
    failure: StepFailure | None = None

    def annotate(self, output: str) -> str:
        """The output, which is kept, with why there is no value (C20, F14)."""
        if self.failure is None:
            return output
        note = f"[structured output failed: {self.failure.message}]"
        return f"{output}\n{note}" if output else note


UNCHECKED = Structured(
    failure=StepFailure(code=FailureCode.INTERNAL, message="it could not be validated", retryable=True)
)
"""For when checking itself went wrong in a way that nobody foresaw."""


async def structured_text(validator: Validator, schema: object, text: str, *, owner: str = "") -> Structured:
    """What JSON text stands for, if that satisfies the schema. Checks of different owners take turns."""
    if len(text) > MAX_TEXT:
        return _invalid(f"the output has more than {MAX_TEXT:,} characters, and is not read as JSON")
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        return _invalid("the output is nested too deep")
    except ValueError as error:
        return _invalid(f"the output is not JSON: {error}")
    return await structured_value(validator, schema, value, owner=owner)


async def structured_value(validator: Validator, schema: object, value: object, *, owner: str = "") -> Structured:
    """The value, if it satisfies the schema. Checks of different owners take turns."""
    try:
        fault = await validator.validate(schema, value, owner=owner)
    except FanfoldError as error:
        message = f"it could not be validated: {error.message}"
        return Structured(failure=StepFailure(code=FailureCode.INTERNAL, message=message, retryable=True))
    return Structured(value=value) if fault is None else _invalid(fault)


def _invalid(why: str) -> Structured:
    return Structured(failure=StepFailure(code=FailureCode.OUTPUT_INVALID, message=why))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON value")
