"""Settings from several sources, one over the other, and which of them each comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Location = tuple[int | str, ...]
"""Keys, and places in lists, that lead to a setting."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings from one source. `source` names the place of a key in it, for people."""

    values: Mapping[str, Any]
    source: Callable[[Location], str]


def by_hand(overrides: Mapping[str, Any]) -> Layer:
    """What was given by hand, as on a command line; None is what was not."""
    return Layer(_given(overrides), lambda _: "given on the command line")


def _given(overrides: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _given(value) if isinstance(value, Mapping) else value
        for key, value in overrides.items()
        if value is not None
    }


def merged(layers: Sequence[Layer]) -> dict[str, Any]:
    """What they come to together, the first one on top."""
    values: dict[str, Any] = {}
    for layer in reversed(layers):
        values = _over(values, layer.values)
    return values


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(below)
    for key, value in above.items():
        under = values.get(key)
        both = isinstance(under, Mapping) and isinstance(value, Mapping)
        values[key] = _over(under, value) if both and under is not None else value
    return values


def depth(values: Any, location: Location) -> int:
    """How many parts of `location` lead to something in `values`."""
    for passed, part in enumerate(location):
        match values:
            case Mapping() if part in values:
                values = values[part]
            case list() if isinstance(part, int) and part < len(values):
                values = values[part]
            case _:
                return passed
    return len(location)


def without(values: Mapping[str, Any], location: Location) -> dict[str, Any]:
    """The same without the setting at `location`, or the deepest that has it; lists go as a whole."""
    rest = dict(values)
    key, *further = location or ("",)
    below = rest.get(str(key))
    if further and isinstance(further[0], str) and isinstance(below, Mapping) and further[0] in below:
        rest[str(key)] = without(below, tuple(further))
    else:
        rest.pop(str(key), None)
    return rest
