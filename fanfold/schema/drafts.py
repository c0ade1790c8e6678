"""Schemas of draft 07, which many programs still write, as schemas of 2020-12 that mean the same.

Which draft a schema is of, its `$schema` says. In draft 07 a keyword that came later is unknown, and means nothing, and
beside a `$ref` nothing counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

_DRAFT_07 = frozenset(
    f"{scheme}://json-schema.org/draft-07/schema{end}" for scheme in ("http", "https") for end in ("", "#")
)
_SINGLES = frozenset({"additionalProperties", "contains", "else", "if", "not", "propertyNames", "then"})
_LISTS = frozenset({"allOf", "anyOf", "oneOf"})
_MAPS = frozenset({"$defs", "definitions", "patternProperties", "properties"})
_BESIDE_REFERENCES = frozenset({"$ref", "$defs", "definitions"})
_LATER = frozenset(
    {
        "$anchor",
        "$dynamicAnchor",
        "$dynamicRef",
        "contentSchema",
        "dependentRequired",
        "dependentSchemas",
        "maxContains",
        "minContains",
        "prefixItems",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)


def in_2020_12(schema: Any) -> Any:
    """The schema, written anew if it is of draft 07. What is wrong in it stays so."""
    if not isinstance(schema, dict) or not isinstance(schema.get("$schema"), str) or schema["$schema"] not in _DRAFT_07:
        return schema
    return _anew({keyword: value for keyword, value in schema.items() if keyword != "$schema"})


def _anew(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        schema = {keyword: value for keyword, value in schema.items() if keyword in _BESIDE_REFERENCES}
    written: dict[str, Any] = {}
    for keyword, value in schema.items():
        written |= _keyword(keyword, value, schema)
    return written


def _keyword(keyword: str, value: Any, schema: dict[str, Any]) -> dict[str, Any]:
    """What stands for a keyword of a schema."""
    match keyword, value:
        case "items", list():
            return {"prefixItems": list(map(_anew, value))}
        case "additionalItems", _:
            return {"items": _anew(value)} if isinstance(schema.get("items"), list) else {}
        case "dependencies", dict():
            return dict(_dependencies(value))
        case "$id", str() if value.startswith("#"):
            return {"$anchor": value[1:]}
    if keyword in _LATER:
        return {}
    return {keyword: _subschemas(keyword)(value)}


def _dependencies(dependencies: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    required = {name: each for name, each in dependencies.items() if isinstance(each, list)}
    if required:
        yield "dependentRequired", required
    if len(required) < len(dependencies):
        yield "dependentSchemas", {name: _anew(each) for name, each in dependencies.items() if name not in required}


def _subschemas(keyword: str) -> Callable[[Any], Any]:
    """How the value of a keyword is written anew: as the subschemas that it holds."""
    if keyword in _SINGLES or keyword == "items":
        return _anew
    if keyword in _LISTS:
        return lambda value: list(map(_anew, value)) if isinstance(value, list) else value
    if keyword in _MAPS:
        return lambda value: {name: _anew(each) for name, each in value.items()} if isinstance(value, dict) else value
    return lambda value: value
