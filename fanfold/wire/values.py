"""JSON values in messages, which are text there."""

from __future__ import annotations

from typing import Any

from fanfold.errors import InvalidArgument
from fanfold.strict_json import is_deeper, parse_json

MAX_JSON_DEPTH = 64


def json_from_text(text: str, *, path: str, most_deep: int = MAX_JSON_DEPTH) -> Any:
    """The value of JSON text; `path` is where in the message it is.

    Raises:
        InvalidArgument: it is not JSON (RFC 8259: NaN and Infinity are not), or nested deeper than `most_deep`.
    """
    try:
        value = parse_json(text)
        is_too_deep = is_deeper(value, most_deep)
    except RecursionError:
        is_too_deep = True
    except ValueError as error:
        raise InvalidArgument.of_field(path, f"must be JSON: {error}") from None
    if is_too_deep:
        raise InvalidArgument.of_field(path, f"must be nested at most {most_deep} deep")
    return value


def schema_from_text(text: str, path: str, schemas: dict[str, Any] | None = None) -> Any:
    """The schema that JSON text stands for.

    `schemas` remembers schemas by their text, so that the many steps of a run that share one share one value.

    Raises:
        InvalidArgument: as `json_from_text`, or it is null.
    """
    if schemas is not None and text in schemas:
        return schemas[text]
    schema = json_from_text(text, path=path)
    if schema is None:
        raise InvalidArgument.of_field(path, "must be a JSON Schema, not null")
    if schemas is not None:
        schemas[text] = schema
    return schema
