"""What values a setting may have, in words, from its definition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, MaxLen, MinLen
from pydantic.fields import FieldInfo

from fanfold.model.principal import Role
from fanfold.section import Unit

_KINDS: dict[Any, str] = {
    bool: "`true` or `false`",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    Role: "a role",
}


def values_of(field: FieldInfo) -> str:
    """The kind of its values with unit and limits, as `seconds, > 0, at most 86,400`."""
    unit = next((mark.name for mark in field.metadata if isinstance(mark, Unit)), "")
    between = "; " if get_args(field.annotation) else ", "  # what is said of a list is not said of what is in it
    return between.join([unit or _kind(field.annotation), *_limits(field.metadata)])


def _kind(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return ", ".join([_kind(parts[0]), *_limits(_flat(parts[1:]))])
    if origin is Literal:
        return " ".join(f"`{part}`" for part in parts)
    if origin in {Union, UnionType}:
        return _kind(next(part for part in parts if part is not type(None)))
    if origin in {list, tuple}:
        return f"list of: {_kind(parts[0])}"
    if origin is dict:
        return f"mapping of names to: {_kind(parts[1])}"
    return _KINDS.get(annotation, "objects, as below")


def _flat(marks: Iterable[Any]) -> Iterator[Any]:
    for mark in marks:
        yield from mark.metadata if isinstance(mark, FieldInfo) else [mark]


def _limits(marks: Iterable[Any]) -> Iterator[str]:
    for mark in marks:
        match mark:
            case Gt(gt=least):
                yield f"> {least:,}"
            case Ge(ge=least):
                yield f"at least {least:,}"
            case Le(le=most):
                yield f"at most {most:,}"
            case MinLen(min_length=1):
                yield "not empty"
            case MinLen(min_length=least):
                yield f"at least {least:,} long"
            case MaxLen(max_length=most):
                yield f"at most {most:,} long"
