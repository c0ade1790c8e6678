"""How values are judged, in this process: the keywords that differ from the library's, and the wording of faults."""

from __future__ import annotations

from typing import Any

import pytest

from fanfold.schema.dialect import BadPattern, Dialect, expression, faults, registry_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ARABIC_THREE = "\u0663"  # a digit for Python's re, none for RE2 and for ECMA-262


def judge(schema: Any, value: Any) -> str | None:
    return faults(Dialect(schema, registry=registry_of(schema)), value)


@pytest.mark.contract("C20")
@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "integer"}, [3, 3.0, 10**400], ["3", 3.5, True, None]),
        ({"type": ["string", "null"]}, ["a", None], [1]),
        ({"required": ["a"], "properties": {"a": {"minimum": 1}}}, [{"a": 1}, 7], [{}, {"a": 0}]),
        ({"pattern": "^b+$"}, ["bb", 5], ["ab", "b\n"]),
        ({"patternProperties": {"^n_": {"type": "number"}}}, [{"n_a": 1, "x": "y"}], [{"n_a": "1"}]),
        (
            {"properties": {"a": True}, "patternProperties": {"^b": True}, "additionalProperties": False},
            [{"a": 1, "bb": 2}, "no object"],
            [{"c": 1}],
        ),
        ({"additionalProperties": {"type": "string"}}, [{"a": "x"}], [{"a": 1}]),
        (
            {"uniqueItems": True},
            [[1, True, "1", [1], {"a": 1}], [[1, 2], [2, 1]]],
            [[1, 1.0], [{"a": [0]}, {"a": [0]}]],
        ),
        ({"uniqueItems": True}, [[0, False], [[0], [False]]], [[False, False], [None, None]]),
        ({"uniqueItems": True}, [[]], [[{"a": 1, "b": 2}, {"b": 2, "a": 1}]]),
        ({"uniqueItems": False}, [[1, 1]], []),
        ({"multipleOf": 0.1}, [0.3, 1, 10**400, 1e300], [0.35, 0.01]),
        ({"multipleOf": 3}, [9, 9.0, 0], [10, 9.5]),
        ({"format": "email"}, ["not an address"], []),
        ({"unevaluatedProperties": False, "allOf": [{"properties": {"a": True}}]}, [{"a": 1}], [{"b": 1}]),
        ({"$ref": "#/$defs/list", "$defs": {"list": {"items": {"$ref": "#/$defs/list"}}}}, [[[[]]]], []),
        ({"$ref": "item", "$defs": {"i": {"$id": "item", "$anchor": "a", "type": "null"}}}, [None], [1]),
        (True, [None], []),
        (False, [], [None]),
    ],
)
def test_right_values_pass_and_wrong_ones_do_not(schema: Any, right: list[Any], wrong: list[Any]) -> None:
    assert [judge(schema, value) for value in right] == [None] * len(right)
    assert all(judge(schema, value) for value in wrong)


@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": DIALECT, "pattern": r"^\d$"},
        {"properties": {"a": {"$schema": DIALECT, "pattern": r"^\d$"}}},
        {"$schema": DIALECT, "pattern": r"^\d$", "properties": {"a": {"$ref": "#"}}},
        {"properties": {"a": {"not": {"not": {"$schema": f"{DIALECT}#", "pattern": r"^\d$"}}}}},
    ],
)
@pytest.mark.contract("C20")
def test_a_subschema_that_names_its_dialect_does_not_get_back_to_backtracking_patterns(schema: Any) -> None:
    def wrap(text: str) -> Any:
        return {"a": text} if "properties" in schema else text

    assert judge(schema, wrap("3")) is None
    assert judge(schema, wrap(ARABIC_THREE)) is not None


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"^\u0041$", "A"),
        (r"^[\u0041-\u0043]$", "B"),
        (r"^\uD83D\uDE00$", "\U0001f600"),
        (r"^\u{1F600}$", "\U0001f600"),
        (r"^\cJ$", "\n"),
        (r"^\\u0041$", "\\u0041"),
        (r"^\/\-\.$", "/-."),
        (r"^(?<year>\d{4})$", "2024"),
        (r"^\p{L}+$", "äß"),
    ],
)
def test_escapes_of_ecma_script_mean_the_same(pattern: str, text: str) -> None:
    assert expression(pattern).search(text)


@pytest.mark.parametrize("pattern", [r"(?=a)", r"(?<!a)b", r"(a)\1", "(", r"(a{1000}){1000}"])
def test_patterns_that_cannot_run_in_linear_time_are_bad(pattern: str) -> None:
    with pytest.raises(BadPattern):
        expression(pattern)


@pytest.mark.parametrize(
    ("schema", "value", "told"),
    [
        ({"properties": {"a": {"items": {"type": "string"}}}}, {"a": ["x", 1]}, "$.a[1]: 1 is not of type 'string'"),
        ({"required": ["a b"]}, {}, "$: 'a b' is a required property"),
        ({"additionalProperties": {"type": "null"}}, {"a b": 1}, "$['a b']: 1 is not of type 'null'"),
        ({"additionalProperties": False}, {"x": 1, "y": 2}, "$: unexpected properties: 'x', 'y'"),
        ({"uniqueItems": True}, [1, 2, 1], "$: items 0 and 2 are equal, but items must be unique"),
        (
            {"anyOf": [{"type": "string"}, {"type": "null"}]},
            1,
            "$: 1 is not valid under any of the given schemas (1 is not of type 'string'; or 1 is not of type 'null')",
        ),
        (
            {"anyOf": [{"type": "null"}, {"properties": {"a": {"type": "null"}}}]},
            {"a": 1},
            "$.a: 1 is not of type 'null'",
        ),
        (
            {"items": {"type": "null"}},
            [1, 2, 3, 4],
            "$[0]: 1 is not of type 'null'; $[1]: 2 is not of type 'null'; $[2]: 3 is not of type 'null'; and more",
        ),
    ],
)
def test_faults_name_the_place_and_the_expectation(schema: Any, value: Any, told: str) -> None:
    assert judge(schema, value) == told


@pytest.mark.parametrize(
    ("schema", "value", "end"),
    [
        ({"type": "null"}, "x" * 100_000, "is not of type 'null'"),
        ({"type": "null"}, {"a\n\x1b\u2028": "b\n"}, "is not of type 'null'"),
        ({"additionalProperties": {"type": "null"}}, {"k\n" * 5000: "v" * 5000}, "is not of type 'null'"),
        ({"items": {"type": "null"}}, ["x" * 1000] * 4, "and more"),
        ({"additionalProperties": False}, {"k" * 5000: 1}, "'"),
    ],
)
def test_faults_stay_on_one_short_line_that_still_says_why(schema: Any, value: Any, end: str) -> None:
    told = judge(schema, value)
    assert told is not None
    assert len(told) <= 500
    assert told.isprintable()
    assert told.endswith(end)
