"""Python values to JSON text, or why that is impossible."""

from __future__ import annotations

import json
import math

from fanfold.schema.words import at, json_path, shorten


class NotJson(Exception):
    """A value has no JSON text within the limits; the message says where and why."""


def json_bytes(value: object, *, max_bytes: int, max_depth: int) -> bytes:
    """The value as compact JSON text in UTF-8.

    The depth is enforced only as far as the encoder needs it; the worker counts exactly.

    Raises:
        NotJson: it holds something that JSON cannot say (NaN, infinities, a set, a lone surrogate), contains itself,
            or is too large.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError):
        raise NotJson(_culprit(value, max_depth)) from None
    if len(text) > max_bytes:
        raise NotJson(f"$: larger than {max_bytes:,} bytes")
    return text


def _culprit(value: object, max_depth: int) -> str:
    """Looks for what the encoder failed at. Depth first, so that a value that contains itself soon ends the search."""
    pending: list[tuple[tuple[str | int, ...], object]] = [((), value)]
    while pending:
        path, item = pending.pop()
        fault = f"nests deeper than {max_depth} levels" if len(path) >= max_depth else _fault(item)
        if fault:
            return at(json_path(path), fault)
        if isinstance(item, dict):
            pending.extend(((*path, key), child) for key, child in item.items())
        elif isinstance(item, list | tuple):
            pending.extend(((*path, index), child) for index, child in enumerate(item))
    return "$: not JSON"


def _fault(item: object) -> str | None:
    match item:
        case None | bool() | list() | tuple():
            return None
        case str():
            return None if _is_unicode(item) else "has a lone surrogate, which is no Unicode text"
        case int():
            return None if _is_printable(item) else "is an integer of more digits than can be written"
        case float():
            return None if math.isfinite(item) else f"{item} is not JSON"
        case dict():
            wrong = next((key for key in item if not isinstance(key, str) or not _is_unicode(key)), "")
            return f"the key {shorten(ascii(wrong), 80)} is not JSON" if wrong != "" else None
        case _:
            return f"{type(item).__name__} is not JSON"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_printable(number: int) -> bool:
    try:
        str(number)
    except ValueError:
        return False
    return True
