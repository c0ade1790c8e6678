"""JSON of strangers, as RFC 8259 has it: there are no NaN and no infinities, and it may be nested too deep."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def refuse_constant(constant: str) -> NoReturn:
    """For `parse_constant` of decoders: refuses what Python takes for numbers, and JSON does not have."""
    raise ValueError(f"{constant} is no JSON value")


def parse_json(text: str) -> Any:
    """The value of JSON text.

    Raises:
        ValueError: it is no JSON, or has a number that would become an infinity.
        RecursionError: it nests deeper than Python reads.
    """
    return json.loads(text, parse_constant=refuse_constant, parse_float=_finite)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number in it is too large")
    return number


def compact_json(value: object) -> str:
    """The text of a JSON value, without blanks.

    Raises:
        TypeError: it is no JSON value.
    """
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def is_deeper(value: object, levels: int) -> bool:
    """Whether a JSON value has more than so many objects and lists within one another."""
    layer = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        layer = [child for parent in layer for child in _items(parent) if isinstance(child, dict | list)]
    return bool(layer)


def _items(parent: Any) -> Any:
    return parent.values() if isinstance(parent, dict) else parent
