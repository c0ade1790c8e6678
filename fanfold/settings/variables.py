"""Settings in environment variables: the key `listen.port` is `<prefix>LISTEN__PORT`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from fanfold.errors import FieldViolation, InvalidArgument
from fanfold.model.validation import nearest_name
from fanfold.settings.client import CLIENT_VARIABLES
from fanfold.settings.environment import full_environment
from fanfold.settings.layers import Layer, Location

if TYPE_CHECKING:
    from pydantic import BaseModel

NESTING = "__"

_OURS = "FANFOLD_"
_KUBERNETES = re.compile(
    r"\w+_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)=.*|\w+_PORT=(tcp|udp|sctp)://.*"
)
"""What Kubernetes makes up for each service that a pod could ask, with its value."""


def variable_of(prefix: str, location: Location) -> str:
    """The variable of a setting."""
    return prefix + NESTING.join(map(str, location)).upper()


def environment_layer(prefix: str) -> Layer:
    """The variables whose names begin with `prefix`. Raises InvalidArgument for one given whole and in parts."""
    environment = full_environment()
    values: dict[str, Any] = {}
    names: dict[Location, str] = {}
    for name in sorted(environment):
        if not name.startswith(prefix) or name == prefix:
            continue
        path = tuple(name.removeprefix(prefix).lower().split(NESTING))
        below = values
        for part in path[:-1]:
            below = below.setdefault(part, {})
            if not isinstance(below, dict):
                raise InvalidArgument.of_field(name, "is given both as a whole and in parts")
        below[path[-1]] = _parsed(environment[name])
        names[path] = name

    def source(location: Location) -> str:
        found = [name for path, name in names.items() if all(a == b for a, b in zip(path, location, strict=False))]
        return f"in {', '.join(found)}"

    return Layer(values, source)


def _parsed(text: str) -> Any:
    """Lists and mappings from JSON; all else stays text, which the model converts."""
    if not text.startswith(("[", "{")):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # as "[::1]:7400"
        return text


def unknown_variables(model: type[BaseModel], prefix: str, others: Collection[str]) -> list[FieldViolation]:
    """The variables that are called like ours and mean nothing, each with the one that was probably meant.

    Those that begin with `prefix`, that of `model`, are looked at with the settings; those of `others`, the prefixes of
    other services, are theirs.
    """
    known = {name.lower(): name for name in (*CLIENT_VARIABLES, *_variables(model, prefix, ()))}
    heads = {head.removesuffix(NESTING).lower(): head for head in (prefix, *others)}

    def meant(name: str) -> str:
        head, nesting, rest = name.partition(NESTING)
        if not nesting:
            return known.get(nearest_name(name, known), "")
        nearest = heads.get(nearest_name(head, heads), "")
        return nearest and nearest + rest

    return [
        FieldViolation(name, "unknown variable" + (f"; did you mean {found}?" if (found := meant(name)) else ""))
        for name, value in sorted(full_environment().items())
        if name.startswith(_OURS)
        and name not in CLIENT_VARIABLES
        and not name.startswith((prefix, *others))
        and not _KUBERNETES.fullmatch(f"{name}={value}")
    ]


def _variables(model: type[BaseModel], prefix: str, location: Location) -> Iterator[str]:
    from pydantic import BaseModel  # noqa: PLC0415 - only services have such settings

    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _variables(kind, prefix, (*location, name))
        else:
            yield variable_of(prefix, (*location, name))
