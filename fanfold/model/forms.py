"""Values of our types as pydantic checks them and makes JSON of them.

It is loaded when it is first needed: that takes longer than most commands of people, which come without.
"""

# ruff: noqa: PLC0415 - see above

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from fanfold.errors import FieldViolation, InvalidArgument

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

_MAX_NAME_TOLD = 128

_Told = Callable[[FieldViolation], FieldViolation]


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def checked(kind: Any, value: object, *, path: str, first_index: int = 0, told: _Told = lambda found: found) -> Any:
    """The value of type `kind` that `value` is, or is a form of.

    A list is taken to begin at `first_index`; `told` is how what is found is told.

    Raises:
        InvalidArgument: naming every wrong field, as `steps[3].task_id` if `path` is "steps".
    """
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        raise InvalidArgument(violations=[told(found) for found in violations_of(error, path, first_index)]) from None


def checked_json(kind: Any, text: str, *, path: str) -> Any:
    """The value of type `kind` that a JSON text is the form of. Raises InvalidArgument as `checked` does."""
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_json(text)
    except ValidationError as error:
        raise InvalidArgument(violations=violations_of(error, path)) from None


def json_form(kind: Any, value: object, *, without: Collection[str] = ()) -> Any:
    """The JSON form of a value of type `kind`, without some of its fields."""
    return _adapter(kind).dump_python(value, mode="json", exclude=set(without))


def violations_of(error: ValidationError, path: str, first_index: int = 0) -> list[FieldViolation]:
    """What pydantic found, as field paths with the limit in words and without the rejected value.

    A list at the top is taken to begin at `first_index`.
    """
    return [
        FieldViolation(_path_of(path, _shifted(details["loc"], first_index)), _describe(details))
        for details in error.errors(include_url=False, include_input=False)
    ]


def _shifted(location: Sequence[int | str], first_index: int) -> Sequence[int | str]:
    if first_index and location and isinstance(location[0], int):
        return [location[0] + first_index, *location[1:]]
    return location


def _path_of(path: str, location: Sequence[int | str]) -> str:
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part != "[key]":
            name = part if part.isprintable() else repr(part)
            path += f".{name[:_MAX_NAME_TOLD]}" if path else name[:_MAX_NAME_TOLD]
    return path


def _describe(details: Any) -> str:
    match details["type"]:
        case "missing":
            return "is required"
        case "unexpected_keyword_argument" | "extra_forbidden":
            return "unknown field"
        case "model_type" | "dict_type":  # pydantic's words have names of classes
            return "must be a mapping"
        case "string_unicode":
            return "must be valid Unicode (it has a lone surrogate)"
        case "value_error":
            return str(details["ctx"]["error"])
        case "string_too_short" if details["ctx"]["min_length"] == 1:
            return "must not be empty"
        case _:
            message: str = details["msg"]
            for prefix in ("Input should be ", "Input should have ", "String should have ", "Value should have "):
                if message.startswith(prefix):
                    verb = "must be " if prefix.endswith("be ") else "must have "
                    return verb + message.removeprefix(prefix)
            return message
