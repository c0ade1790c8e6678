"""Values to JSON text, or why that is impossible."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from fanfold.schema.encoding import NotJson, json_bytes


def encode(value: Any) -> bytes:
    return json_bytes(value, max_bytes=1000, max_depth=64)


def itself() -> list[Any]:
    value: list[Any] = []
    value += [value, value]
    return value


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [None, True, 1.5, 10**900, "ä\n\U0001f600", [1, [2]], {"a": {"b": []}}, ""])
def test_every_json_value_has_a_text_that_reads_the_same(value: Any) -> None:
    assert json.loads(encode(value)) == value


def test_the_text_is_compact_utf8() -> None:
    assert encode({"ä": [1, 2]}) == '{"ä":[1,2]}'.encode()


@pytest.mark.contract("C20")
@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"a": [1, math.nan]}, "$.a[1]: nan is not JSON"),
        (math.inf, "$: inf is not JSON"),
        ([{"a b": -math.inf}], "$[0]['a b']: -inf is not JSON"),
        ({"a": {1, 2}}, "$.a: set is not JSON"),
        ({"a": b"x"}, "$.a: bytes is not JSON"),
        ({"a": {(1, 2): 3}}, "$.a: the key (1, 2) is not JSON"),
        (["\ud800"], "$[0]: has a lone surrogate, which is no Unicode text"),
        ([{"\ud800": 1}], "$[0]: the key '\\ud800' is not JSON"),
        ({"a": 10**5000}, "$.a: is an integer of more digits than can be written"),
        ("x" * 999, "$: larger than 1,000 bytes"),
        ("ä" * 500, "$: larger than 1,000 bytes"),
    ],
)
def test_anything_else_is_refused_with_its_place(value: Any, told: str) -> None:
    with pytest.raises(NotJson) as refusal:
        encode(value)
    assert str(refusal.value) == told


@pytest.mark.parametrize("value", [itself(), nested(5000)])
def test_a_value_without_end_or_too_deep_is_refused_at_once(value: Any) -> None:
    with pytest.raises(NotJson, match="nests deeper than 64 levels"):
        encode(value)
