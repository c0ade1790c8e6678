"""Structured output: which value counts, and what happens if there is none."""

from __future__ import annotations

import pytest

from fanfold.errors import Unavailable
from fanfold.model.step import FailureCode
from fanfold.schema.structured import structured_text


class Validator:
    """Finds fault with everything but what it is told to like."""

    def __init__(self, liked: object) -> None:
        self.liked = liked

    async def validate(self, schema: object, value: object, *, owner: str = "") -> str | None:
        if schema == "away":
            raise Unavailable("it is away")
        return None if value == self.liked else f"$: {value} is not liked"


@pytest.mark.contract("C20")
@pytest.mark.parametrize(("text", "liked"), [('{"a": 1}', {"a": 1}), (" 7\n", 7), ("null", None)])
async def test_text_that_stands_for_a_valid_value(text: str, liked: object) -> None:
    structured = await structured_text(Validator(liked), {}, text)
    assert (structured.value, structured.failure) == (liked, None)
    assert structured.annotate(text) == text


@pytest.mark.contract("C20", "F14")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("words", "the output is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("7", "$: 7 is not liked"),
        ("-Infinity", "the output is not JSON: -Infinity is no JSON value"),
        ("[" * 100_000, "the output is nested too deep"),
    ],
)
async def test_without_a_valid_value_the_text_is_kept_with_a_note(text: str, why: str) -> None:
    structured = await structured_text(Validator(None), {}, text)
    assert structured.value is None
    assert structured.annotate("kept") == f"kept\n[structured output failed: {why}]"
    assert structured.annotate("") == f"[structured output failed: {why}]"
    assert structured.failure is not None
    assert (structured.failure.code, structured.failure.message) == (FailureCode.OUTPUT_INVALID, why)
    assert not structured.failure.retryable


async def test_a_validator_that_is_away_is_not_the_agents_fault() -> None:
    structured = await structured_text(Validator(7), "away", "7")
    assert structured.value is None
    assert structured.failure is not None
    assert (structured.failure.code, structured.failure.retryable) == (FailureCode.INTERNAL, True)
