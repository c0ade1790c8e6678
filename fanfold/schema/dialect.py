"""JSON Schema 2020-12 as `jsonschema` reads it, with keywords replaced whose cost a caller could drive up.

Patterns run on RE2 in linear time, uniqueItems hashes instead of comparing every pair, and multipleOf counts in exact
fractions. No reference is ever fetched: the registry holds the document itself. `format` is not asserted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from typing import Any

import re2  # type: ignore[import-untyped]
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend
from referencing import Registry
from referencing.jsonschema import DRAFT202012, Schema, SchemaRegistry

from fanfold.schema.words import json_path, one_line, shorten

_MAX_FAULTS_TOLD = 3
_MAX_FAULTS_LENGTH = 480
_MAX_VALUE_TOLD = 60
_MAX_BRANCHES_TOLD = 3

_EXPRESSION_OPTIONS = re2.Options()
_EXPRESSION_OPTIONS.log_errors = False
_EXPRESSION_OPTIONS.never_capture = True
_EXPRESSION_OPTIONS.max_mem = 2 * 1024 * 1024

# ECMA-262 escapes that RE2 writes otherwise; any other escape is matched too, so that `\\u0041` stays what it is.
_ESCAPE = re.compile(
    r"\\(?:u\{([0-9A-Fa-f]{1,6})\}"
    r"|u([Dd][89ABab][0-9A-Fa-f]{2})\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})"
    r"|u([0-9A-Fa-f]{4})"
    r"|c([A-Za-z])"
    r"|.)",
    re.DOTALL,
)


class BadPattern(Exception):
    """RE2 does not take this regular expression; the message says why."""


@lru_cache(maxsize=512)
def expression(pattern: str) -> Any:
    """The regular expression for RE2.

    Raises:
        BadPattern: RE2 has no such construct, or it grows too large.
    """
    try:
        return re2.compile(_ESCAPE.sub(_rewritten, pattern), _EXPRESSION_OPTIONS)
    except re2.error as error:
        (reason,) = error.args
        raise BadPattern(reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from None


def _rewritten(escape: re.Match[str]) -> str:
    braced, high, low, plain, control = escape.groups()
    if high:
        return rf"\x{{{0x10000 + ((int(high, 16) & 0x3FF) << 10) + (int(low, 16) & 0x3FF):X}}}"
    if control:
        return rf"\x{{{ord(control) % 32:X}}}"
    code = braced or plain
    return rf"\x{{{code}}}" if code else escape[0]


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not expression(pattern).search(instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: dict[str, Any], instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for pattern, subschema in patterns.items():
        search = expression(pattern).search
        for name, value in instance.items():
            if search(name):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    named = schema.get("properties", {})
    searches = [expression(pattern).search for pattern in schema.get("patternProperties", ())]
    extras = [name for name in instance if name not in named and not any(search(name) for search in searches)]
    if allowed is False and extras:
        yield ValidationError(f"unexpected properties: {', '.join(map(repr, extras))}")
    elif allowed is not False:
        for name in extras:
            yield from validator.descend(instance[name], allowed, path=name)


def _unique_items(validator: Any, wanted: bool, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not wanted or not isinstance(instance, list):
        return
    seen: dict[Any, int] = {}
    for index, item in enumerate(instance):
        first = seen.setdefault(_identity(item), index)
        if first != index:
            yield ValidationError(f"items {first} and {index} are equal, but items must be unique")
            return


def _identity(value: Any) -> Any:
    """Something hashable that is equal for equal JSON values: 1 and 1.0 are, 1 and true are not."""
    match value:
        case dict():
            return dict, frozenset((name, _identity(item)) for name, item in value.items())
        case list():
            return list, tuple(map(_identity, value))
        case bool():
            return bool, value
        case _:
            return value


def _multiple_of(validator: Any, divisor: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    # JSON numbers are decimal: 0.3 is a multiple of 0.1, whatever their binary neighbours are.
    if validator.is_type(instance, "number") and _fraction(instance) % _fraction(divisor):
        yield ValidationError(f"{instance!r} is not a multiple of {divisor!r}")


def _fraction(number: int | float) -> Fraction:
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


# The version registers the class for the 2020-12 `$schema`; a subschema that names it would else fall back to `re`.
Dialect = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
        "multipleOf": _multiple_of,
    },
    version="fanfold",
)


def registry_of(schema: Any) -> SchemaRegistry:
    """A registry of the document alone, with every `$id` and anchor in it found once and for all."""
    resource = DRAFT202012.create_resource(schema)
    registry: Registry[Schema] = Registry()
    crawled: SchemaRegistry = registry.with_resource(resource.id() or "", resource).crawl()
    return crawled


def faults(validator: Any, value: Any, *, root: str = "$") -> str | None:
    """What is wrong with the value, the first few faults on one line with their places; None when it is valid."""
    errors = list(islice(validator.iter_errors(value), _MAX_FAULTS_TOLD + 1))
    if not errors:
        return None
    told = errors[:_MAX_FAULTS_TOLD]
    room = _MAX_FAULTS_LENGTH // len(told)
    words = "; ".join(_told(error, root, room) for error in told)
    return one_line(words + ("; and more" if len(errors) > len(told) else ""))


def _told(error: ValidationError, root: str, room: int) -> str:
    error = best_match([error]) or error
    path = shorten(json_path(error.absolute_path, root=root), room // 2)
    words = _message(error)
    if error.context:
        # No branch came nearer than the others, so what they miss is told side by side.
        branches = (_message(branch) for branch in error.context[:_MAX_BRANCHES_TOLD])
        words += f" ({'; or '.join(branches)})"
    return f"{path}: {shorten(words, room - len(path) - 2)}"


def _message(error: ValidationError) -> str:
    shown = repr(error.instance)
    if len(shown) <= _MAX_VALUE_TOLD:
        return error.message
    return error.message.replace(shown, shorten(shown, _MAX_VALUE_TOLD))
