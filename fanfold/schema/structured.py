"""From what an agent gave to a value that satisfies the step's schema, or to why the step failed (C20)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

from fanfold.errors import FanfoldError
from fanfold.model.step import FailureCode, StepFailure
from fanfold.schema.candidates import embedded_values
from fanfold.strict_json import parse_json

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

    def unmended(self, why: StepFailure) -> Structured:
        """The same failure, of a text that could not be mended either; it is the quota's if there was none for that."""
        assert self.failure is not None
        code = why.code if why.code is FailureCode.QUOTA_EXHAUSTED else self.failure.code
        message = f"{self.failure.message}; nor could a model mend it: {why.message}"
        return Structured(failure=replace(self.failure, code=code, message=message))

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
    """The value that a text stands for, or has somewhere in it, if that satisfies the schema.

    If none does, why the first that was found does not. Checks of different owners take turns.
    """
    if len(text) > MAX_TEXT:
        return _invalid(f"the output has more than {MAX_TEXT:,} characters, and is not read as JSON")
    try:
        value = parse_json(text)
    except RecursionError:
        return _invalid("the output is nested too deep")
    except ValueError as error:
        return await _embedded(validator, schema, text, f"the output is not JSON: {error}", owner)
    return await structured_value(validator, schema, value, owner=owner)


async def _embedded(validator: Validator, schema: object, text: str, why: str, owner: str) -> Structured:
    first: Structured | None = None
    for value in embedded_values(text):
        structured = await structured_value(validator, schema, value, owner=owner)
        if structured.failure is None:
            return structured
        first = first or structured
    return first or _invalid(why)


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
