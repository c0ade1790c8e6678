"""Structured output: which value counts, and what happens if there is none."""

from __future__ import annotations

import time

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


@pytest.mark.contract("C20")
@pytest.mark.parametrize(
    "text",
    [
        'Here it is:\n```json\n{"a": 1}\n```\nAnything else?',
        '```\n{"draft": 0}\n```\nNo, better:\n```\n{"a": 1}\n```',
        'It is {"a": 1}, I think.',
        'Not {this}, nor [1, 2], but {"a": 1}.',
        '{"broken": [1, {"a": 1}',
        '{"a": 1} {"a": 2}',
        "```json\nno JSON\n```\n" + '{"a": 1}',
    ],
)
async def test_a_valid_value_is_found_among_words(text: str) -> None:
    assert (await structured_text(Validator({"a": 1}), {}, text)).value == {"a": 1}


@pytest.mark.contract("C20")
async def test_the_fault_is_that_of_the_value_that_was_found_first() -> None:
    structured = await structured_text(Validator({"a": 1}), {}, 'It is {"a": 2} or {"a": 3}.')
    assert structured.failure is not None
    assert structured.failure.message == "$: {'a': 2} is not liked"


@pytest.mark.parametrize(
    "text",
    [
        "x" + '{"a":' * 1_000_000,
        "x" + '[" ' * 2_000_000,
        "x[" + "1," * 3_000_000,
        "x" + "[" * 8_000_000,
        "```\n" * 10_000,
    ],
)
async def test_a_hostile_text_is_searched_in_bounded_time(text: str) -> None:
    started = time.process_time()
    assert (await structured_text(Validator(None), {}, text)).failure is not None
    assert time.process_time() - started < 5


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
