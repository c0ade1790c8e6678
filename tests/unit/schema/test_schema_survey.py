"""Which schemas are accepted, in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from fanfold.schema.limits import SchemaLimits
from fanfold.schema.metaschema import METASCHEMA
from fanfold.schema.survey import Refused, survey

LIMITS = SchemaLimits(max_depth=64, max_nodes=10_000, max_pattern_bytes=100, max_evaluations=1000)


def nested(keyword: str, depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {keyword: schema}
    return schema


def doubling(depth: int, keyword: str = "allOf") -> Any:
    definitions: dict[str, Any] = {
        f"d{level}": {keyword: [{"$ref": f"#/$defs/d{level + 1}"}, {"$ref": f"#/$defs/d{level + 1}"}]}
        for level in range(depth)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{depth}": {"type": "integer"}}}


def unevaluated(depth: int) -> Any:
    schema: Any = {"properties": {"a": {"type": "integer"}}}
    for _ in range(depth):
        schema = {"allOf": [schema], "unevaluatedProperties": False}
    return schema


@pytest.mark.contract("C20")
@pytest.mark.parametrize(
    "schema",
    [
        True,
        False,
        {},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"},
        {"$schema": "https://json-schema.org/draft/2020-12/schema#"},
        nested("items", 62),
        doubling(6),
        unevaluated(3),
        {"properties": {f"p{index}": {"type": "string"} for index in range(3000)}},
        {"properties": {"child": {"$ref": "#"}, "children": {"items": {"$ref": "#"}}}},
        {"$id": "https://example.com/a", "$ref": "https://example.com/a#/$defs/b", "$defs": {"b": {"type": "null"}}},
        {"$ref": "b", "$defs": {"b": {"$id": "b", "$anchor": "here"}, "c": {"$ref": "b#here"}}},
        {"$ref": "#/components/x", "components": {"x": {"type": "null"}}},
        {"$dynamicAnchor": "node", "items": {"$dynamicRef": "#node"}},
        {"const": {"$ref": "https://example.com/"}, "enum": [{"pattern": "(?=a)"}], "default": {"type": 5}},
        {"properties": {"pattern": {"type": "string"}, "$ref": {"type": "string"}, "allOf": {"type": "integer"}}},
        {"unevaluatedProperties": False, "properties": {"a": {"patternProperties": {"a": True}}}},
    ],
)
def test_ordinary_schemas_are_accepted(schema: Any) -> None:
    survey(schema, LIMITS)


@pytest.mark.contract("C20")
@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (nested("items", 63), "$: nests deeper than 64 levels"),
        ({"enum": list(range(10_000))}, "$: has more than 10,000 values"),
        ({"properties": {f"p{index}": {} for index in range(50_000)}}, "$: has more than 10,000 values"),
        ({"type": "strng"}, "$.type: 'strng' is not valid under any of the given schemas ('strng' is not one of "),
        ({"properties": {"a": {"minLength": -1}}}, "$.properties.a.minLength: -1 is less than the minimum of 0"),
        ({"required": "a"}, "$.required: 'a' is not of type 'array'"),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#"},
            "$.$schema: 'http://json-schema.org/draft-07/schema#' ",
        ),
        ({"items": {"$schema": "http://json-schema.org/draft-04/schema#", "id": 5}}, "$.items.$schema: "),
        ({"$ref": "https://example.com/a.json"}, "$.$ref: 'https://example.com/a.json' is not in this document"),
        ({"items": {"$dynamicRef": "other#a"}}, "$.items.$dynamicRef: 'other#a' is not in this document"),
        ({"$id": "https://example.com/a/", "$ref": "b"}, "$.$ref: 'b' is not in this document"),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, "$.$ref: 'https://json-schema.org/draft/2020-12/"),
        ({"$ref": "#/$defs/missing"}, "$.$ref: '#/$defs/missing' is not in this document"),
        ({"$ref": "#/type/x", "type": "object"}, "$.$ref: '#/type/x' is not in this document"),
        ({"$ref": "#/minimum/x", "minimum": 1}, "$.$ref: '#/minimum/x' is not in this document"),
        ({"$ref": "#/type", "type": "object"}, "#/type: 'object' is not of type 'object', 'boolean'"),
        ({"$ref": "http://["}, "$.$ref: 'http://[' is not in this document"),
        ({"$id": "http://["}, "$: an $id in it is no URI reference"),
        ({"properties": {"a": {"pattern": "(?=a)"}}}, "$.properties.a.pattern: '(?=a)' is no RE2 expression"),
        ({"patternProperties": {r"(a)\1": True}}, r"$.patternProperties: '(a)\\1' is no RE2 expression"),
        ({"pattern": "a" * 101}, "$.pattern: a pattern is larger than 100 bytes"),
        ({"$ref": "#/x/y", "x": {"y": {"pattern": "(?=a)"}}}, "#/x/y.pattern: '(?=a)' is no RE2 expression"),
        ({"$ref": "#/x/y", "x": {"y": {"$ref": "https://example.com/"}}}, "#/x/y.$ref: 'https://example.com/' is not"),
        ({"$ref": "#/x/y", "x": {"y": {"type": 5}}}, "#/x/y.type: 5 is not "),
        ({"$ref": "#"}, "$: refers to itself without end"),
        ({"anyOf": [{"type": "null"}, {"not": {"$ref": "#"}}]}, "$: refers to itself without end"),
        ({"$defs": {"a": {"if": {"$ref": "#/$defs/b"}}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}}, "$.$defs."),
        ({"$dynamicAnchor": "a", "oneOf": [{"$dynamicRef": "#a"}]}, "$: refers to itself without end"),
        (doubling(30), "$.$defs.d22: applies more than 1,000 subschemas to one place of a value"),
        (doubling(30, "anyOf"), "$.$defs.d22: applies more than 1,000 subschemas to one place of a value"),
        (doubling(30, "oneOf"), "$.$defs.d22: applies more than 1,000 subschemas to one place of a value"),
        (unevaluated(30), "$.allOf[0]"),
        ({"unevaluatedProperties": False, "patternProperties": {"a": True}}, "$.unevaluatedProperties: not supported"),
        (
            {"items": {"unevaluatedProperties": False, "allOf": [{"patternProperties": {"a": True}}]}},
            "$.items.unevaluatedProperties: not supported together with patternProperties",
        ),
    ],
)
def test_a_schema_is_refused_with_its_place_and_the_limit(schema: Any, told: str) -> None:
    with pytest.raises(Refused) as refusal:
        survey(schema, LIMITS)
    assert str(refusal.value).startswith(told)
    assert len(str(refusal.value)) <= 500


def test_a_long_chain_of_references_is_not_followed_to_the_end_of_the_stack() -> None:
    definitions = {f"d{index}": {"$ref": f"#/$defs/d{index + 1}"} for index in range(3000)}
    with pytest.raises((Refused, RecursionError)):
        survey({"$ref": "#/$defs/d0", "$defs": {**definitions, "d3000": True}}, LIMITS)


ODD_VALUES = json.loads(
    """[null, -1, 0, 1.5, 2.0, true, "x", "", "#a", "number", [], ["a"], ["a", "a"], [1], [{}], [true], {}, {"a": 1},
    {"a": {}}, {"a": ["x"]}, {"a": ["x", "x"]}, {"a": {"type": 5}}, ["number", "string"], ["number", "number"]]"""
)


@pytest.mark.parametrize("keyword", sorted(METASCHEMA.schema["properties"].keys() - {"$schema"}))
def test_the_merged_metaschema_has_the_verdicts_of_the_official_one(keyword: str) -> None:
    official = Draft202012Validator(Draft202012Validator.META_SCHEMA)
    verdicts = set()
    for value in ODD_VALUES:
        for schema in (
            {keyword: value},
            {"properties": {"a": {keyword: value}}},
            {"allOf": [{"not": {keyword: value}}]},
        ):
            verdict = METASCHEMA.is_valid(schema)
            assert verdict == official.is_valid(schema), schema
            verdicts.add(verdict)
    assert verdicts == ({True} if keyword in {"const", "default"} else {True, False})
