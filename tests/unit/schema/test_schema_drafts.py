"""Schemas of draft 07 mean here what they mean there."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft7Validator

from fanfold.errors import InvalidArgument
from fanfold.schema import SchemaValidator
from fanfold.schema.drafts import in_2020_12

pytestmark = pytest.mark.contract("C20")

DRAFT_07 = "http://json-schema.org/draft-07/schema#"
VALUES: list[Any] = [
    None,
    1,
    12,
    "a",
    [],
    [1],
    [1, "a"],
    [1, "a", True],
    [1, "a", 3],
    ["a", 1],
    [1, 1],
    {},
    {"a": 1},
    {"a": 1, "b": "x"},
    {"a": 1, "b": 2},
    {"a": "x"},
    {"b": 1},
    {"next": {"next": {"a": 1}}},
    {"next": {"next": {"a": "x"}}},
]
INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
SCHEMAS: list[dict[str, Any]] = [
    {"items": [INTEGER, TEXT]},
    {"items": [INTEGER, TEXT], "additionalItems": False},
    {"items": [INTEGER, TEXT], "additionalItems": {"type": "boolean"}},
    {"items": INTEGER, "additionalItems": False},
    {"additionalItems": False},
    {"dependencies": {"a": ["b"]}},
    {"dependencies": {"a": {"properties": {"b": TEXT}, "required": ["b"]}, "b": ["a"]}},
    {"definitions": {"number": INTEGER}, "properties": {"a": {"$ref": "#/definitions/number"}}},
    {"$ref": "#/definitions/x", "type": "string", "definitions": {"x": {"items": [INTEGER], "type": "array"}}},
    {"properties": {"a": {"$ref": "#/definitions/number", "minimum": 100}}, "definitions": {"number": INTEGER}},
    {"$ref": "#named", "definitions": {"x": {"$id": "#named", "type": "array"}}},
    {"properties": {"next": {"$ref": "#"}, "a": INTEGER}},
    {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"maxProperties": 0}},
    {"contains": INTEGER, "minContains": 2},
    {"contains": {"const": 3}},
    {"prefixItems": [TEXT], "dependentRequired": {"a": ["b"]}, "unevaluatedProperties": False},
    {"not": {"items": [INTEGER], "type": "array", "minItems": 1}},
    {
        "anyOf": [
            {"items": [TEXT], "type": "array", "minItems": 1},
            {"propertyNames": {"enum": ["a"]}, "minProperties": 1},
        ]
    },
    {"patternProperties": {"^a": {"dependencies": {}, "type": "integer"}}, "additionalProperties": {"items": [TEXT]}},
    {"properties": {"items": {"type": "integer"}, "$ref": INTEGER, "a": INTEGER}, "required": ["a"]},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
async def test_a_schema_of_draft_07_accepts_what_it_does_there(schema: dict[str, Any]) -> None:
    there = Draft7Validator(schema)
    expected = [there.is_valid(value) for value in VALUES]
    async with SchemaValidator() as validator:
        await validator.check({"$schema": DRAFT_07} | schema)
        found = [await validator.validate({"$schema": DRAFT_07} | schema, value) is None for value in VALUES]
    assert found == expected
    assert len(set(expected)) == 2 or schema in SCHEMAS[3:5] or "prefixItems" in schema


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"type": "strng"}, "strng"),
        ({"items": [{"pattern": "(?=a)"}]}, "RE2"),
        ({"dependencies": {"a": 5}}, "dependentSchemas"),
        ({"properties": 5}, "properties"),
        ({"$ref": "http://127.0.0.1:1/x"}, "never followed"),
        ({"$ref": "#/definitions/a", "definitions": {"a": {"$ref": "#/definitions/a"}}}, "without end"),
    ],
)
async def test_what_is_wrong_in_it_is_told_before_anything_starts(wrong: dict[str, Any], told: str) -> None:
    async with SchemaValidator() as validator:
        with pytest.raises(InvalidArgument, match=told):
            await validator.check({"$schema": DRAFT_07} | wrong)


def test_only_what_says_that_it_is_of_draft_07_is_written_anew() -> None:
    tuples = {"items": [INTEGER], "dependencies": {"a": ["b"]}}
    for draft in (None, "https://json-schema.org/draft/2020-12/schema", 7):
        schema = tuples if draft is None else {"$schema": draft} | tuples
        assert in_2020_12(schema) is schema
    for draft in (DRAFT_07, "https://json-schema.org/draft-07/schema"):
        assert in_2020_12({"$schema": draft} | tuples) == {"prefixItems": [INTEGER], "dependentRequired": {"a": ["b"]}}
    assert in_2020_12(True) is True
