"""What is asked of a schema before anything is validated with it; runs in the worker.

Size and depth come first, then the metaschema, then a walk over every subschema and whatever references lead to: no
reference may leave the document, every pattern must be one that RE2 runs in linear time, and what the subschemas may
cost together at one place of a value is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from fanfold.schema.dialect import BadPattern, expression, faults, registry_of
from fanfold.schema.limits import SchemaLimits
from fanfold.schema.metaschema import METASCHEMA
from fanfold.schema.words import at, json_path, shorten

_MAX_SHOWN = 120

_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_IN_PLACE = ("not", "if", "then", "else")
_UNEVALUATED = ("unevaluatedItems", "unevaluatedProperties")
_REFERENCES = ("$ref", "$dynamicRef")
_LISTS = (*_IN_PLACE_LISTS, "prefixItems")
_MAPS = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
_SINGLES = (
    *_IN_PLACE,
    *_UNEVALUATED,
    "items",
    "contains",
    "additionalProperties",
    "propertyNames",
    "contentSchema",
)
# Where subschemas are. "In place" are those that apply to the same place of the value as the schema around them.


class Refused(Exception):
    """The schema is not accepted; the message says where and why."""

    @classmethod
    def at(cls, where: str, why: str) -> Refused:
        """The refusal for one place."""
        return cls(at(where, why))


def survey(schema: Any, limits: SchemaLimits) -> None:
    """Check one schema.

    Raises:
        Refused: it is not accepted.
    """
    fault = oversize(schema, max_depth=limits.max_depth, max_nodes=limits.max_nodes)
    if fault:
        raise Refused.at("$", fault)
    places = _Walk(limits.max_pattern_bytes).places(schema)
    _Costs(places, limits.max_evaluations).check()


def oversize(document: Any, *, max_depth: int, max_nodes: int) -> str | None:
    """Says which limit a JSON document exceeds, if any. Works level by level and stops at the first one beyond."""
    level, depth, nodes = [document], 0, 0
    while level:
        depth += 1
        nodes += len(level)
        if depth > max_depth:
            return f"nests deeper than {max_depth:,} levels"
        if nodes > max_nodes:
            return f"has more than {max_nodes:,} values"
        level = [child for item in level for child in _children(item)]
    return None


def _children(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return item.values()
    return item if isinstance(item, list) else ()


@dataclass(slots=True)
class _Place:
    """One subschema: where it is, how references in it are resolved, and to which subschemas they lead."""

    schema: Any
    where: str
    resolver: Any
    targets: list[Any] = field(default_factory=list)

    def subplaces(self) -> Iterator[_Place]:
        for keyword in _SINGLES:
            if keyword in self.schema:
                yield self._below(self.schema[keyword], keyword)
        for keyword in _LISTS:
            for index, subschema in enumerate(self.schema.get(keyword, ())):
                yield self._below(subschema, keyword, index)
        for keyword in _MAPS:
            for name, subschema in self.schema.get(keyword, {}).items():
                yield self._below(subschema, keyword, name)

    def _below(self, subschema: Any, *path: str | int) -> _Place:
        resolver = self.resolver.in_subresource(DRAFT202012.create_resource(subschema))
        return _Place(subschema, json_path(path, root=self.where), resolver)


class _Walk:
    """Finds every subschema of a document and checks each by itself."""

    def __init__(self, max_pattern_bytes: int) -> None:
        self._max_pattern_bytes = max_pattern_bytes
        self._found: dict[int, _Place] = {}
        self._unresolved: list[_Place] = []

    def places(self, schema: Any) -> dict[int, _Place]:
        """Every subschema that is an object, by its `id()`."""
        self._check_form(schema, "$")
        self._enter(_Place(schema, "$", _resolver_of(schema)))
        while self._unresolved:
            place = self._unresolved.pop()
            place.targets = [self._follow(place, keyword) for keyword in _REFERENCES if keyword in place.schema]
        return self._found

    def _check_form(self, schema: Any, where: str) -> None:
        fault = faults(METASCHEMA, schema, root=where)
        if fault:
            raise Refused(fault)

    def _enter(self, place: _Place) -> None:
        pending = [place]
        while pending:
            place = pending.pop()
            if isinstance(place.schema, bool) or id(place.schema) in self._found:
                continue
            self._found[id(place.schema)] = place
            self._unresolved.append(place)
            self._check_patterns(place)
            pending.extend(place.subplaces())

    def _check_patterns(self, place: _Place) -> None:
        patterns = [(place.schema["pattern"], "pattern")] if "pattern" in place.schema else []
        patterns += [(pattern, "patternProperties") for pattern in place.schema.get("patternProperties", ())]
        for pattern, keyword in patterns:
            where = f"{place.where}.{keyword}"
            if len(pattern.encode()) > self._max_pattern_bytes:
                raise Refused.at(where, f"a pattern is larger than {self._max_pattern_bytes:,} bytes")
            try:
                expression(pattern)
            except BadPattern as error:
                shown = shorten(repr(pattern), _MAX_SHOWN)
                why = f"{shown} is no RE2 expression (no look-around, no back-references): {error}"
                raise Refused.at(where, why) from None

    def _follow(self, place: _Place, keyword: str) -> Any:
        reference = place.schema[keyword]
        try:
            target = place.resolver.lookup(reference)
        except (Unresolvable, LookupError, TypeError, ValueError):
            shown = shorten(repr(reference), _MAX_SHOWN)
            why = f"{shown} is not in this document, and references out of it are never followed"
            raise Refused.at(f"{place.where}.{keyword}", why) from None
        # A reference makes a subschema also of what lies where no keyword looks for one.
        if not isinstance(target.contents, bool) and id(target.contents) not in self._found:
            self._check_form(target.contents, reference)
            self._enter(_Place(target.contents, reference, target.resolver))
        return target.contents


def _resolver_of(schema: Any) -> Any:
    try:
        return registry_of(schema).resolver_with_root(DRAFT202012.create_resource(schema))
    except ValueError as error:
        raise Refused.at("$", f"an $id in it is no URI reference: {error}") from None


class _Cost(NamedTuple):
    """What a subschema costs at one place of a value, with everything that applies there with it.

    An unevaluated keyword has to learn what its neighbours accepted and applies them again; `again` counts that.
    """

    once: int = 1
    again: int = 1
    patterns: bool = False


class _Costs:
    """Adds up what subschemas cost in place, and refuses what is endless or too much."""

    def __init__(self, places: dict[int, _Place], limit: int) -> None:
        self._places = places
        self._limit = limit
        self._open: set[int] = set()
        self._known: dict[int, _Cost] = {}
        self._anchored: dict[str, list[Any]] = {}
        for place in places.values():
            if "$dynamicAnchor" in place.schema:
                self._anchored.setdefault(place.schema["$dynamicAnchor"], []).append(place.schema)

    def check(self) -> None:
        for place in self._places.values():
            self._cost(place.schema)

    def _cost(self, schema: Any) -> _Cost:
        if isinstance(schema, bool):
            return _Cost()
        key = id(schema)
        if key in self._known:
            return self._known[key]
        where = self._places[key].where
        if key in self._open:
            raise Refused.at(where, "refers to itself without end, at one and the same place of a value")
        self._open.add(key)
        cost = self._sum(schema, [self._cost(part) for part in self._in_place(schema)])
        self._open.remove(key)
        if cost.patterns and "unevaluatedProperties" in schema:
            raise Refused.at(f"{where}.unevaluatedProperties", "not supported together with patternProperties")
        if cost.once > self._limit:
            raise Refused.at(where, f"applies more than {self._limit:,} subschemas to one place of a value")
        self._known[key] = cost
        return cost

    def _sum(self, schema: Any, parts: list[_Cost]) -> _Cost:
        once = 1 + sum(part.once for part in parts)
        again = once + sum(part.again for part in parts)
        repeats = sum(keyword in schema for keyword in _UNEVALUATED)
        patterns = "patternProperties" in schema or any(part.patterns for part in parts)
        return _Cost(once + repeats * again, again, patterns)

    def _in_place(self, schema: Any) -> Iterator[Any]:
        for keyword in _IN_PLACE_LISTS:
            yield from schema.get(keyword, ())
        for keyword in _IN_PLACE:
            if keyword in schema:
                yield schema[keyword]
        yield from schema.get("dependentSchemas", {}).values()
        # Which of the subschemas with a dynamic anchor is meant shows only while validating: it could be any.
        anchored = self._anchored.get(schema.get("$dynamicRef", "").rpartition("#")[2], ())
        yield from {id(target): target for target in (*self._places[id(schema)].targets, *anchored)}.values()
