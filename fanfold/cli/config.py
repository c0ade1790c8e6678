"""What `fanfold serve --check-config` and `fanfold config` print."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from fanfold.cli.output import show_text, tell
from fanfold.cli.printable import printable
from fanfold.cli.service_settings import COORDINATOR, EXECUTOR_NODE, JOB_REGISTRY, ServiceSettings, service_settings
from fanfold.errors import FieldViolation
from fanfold.settings.client import client_variables
from fanfold.settings.environment import TOKEN_VARIABLE, full_environment
from fanfold.settings.layers import Location

_Disagreements = Callable[[Any, Any], Iterator[FieldViolation]]

MASK = "***"
"""In place of a secret."""


def check(service: ServiceSettings[Any], more: Sequence[FieldViolation] = ()) -> bool:
    """Say everything that is wrong with a service's settings, and `more`, a line each. Returns whether nothing is."""
    wrong = [*service.wrongs(), *more]
    for violation in wrong:
        tell(printable(str(violation)), "red")
    if not wrong:
        tell(f"{service.name}: nothing is wrong with its settings.")
    return not wrong


def check_together(coordinators: Sequence[Path], nodes: Sequence[Path], registry: Path | None) -> bool:
    """Say everything that is wrong with the settings of several services, and between them, below the name of each.

    Returns whether nothing is. Raises InvalidArgument for a file that makes no sense.
    """
    from fanfold.cli.agreement import (  # noqa: PLC0415 - loads them all
        disagreements_of_coordinator,
        disagreements_of_node,
        disagreements_of_registry,
    )

    all_right, before = True, list[Any]()
    services: list[tuple[str, Path, _Disagreements]] = [
        *((COORDINATOR, file, disagreements_of_coordinator) for file in coordinators),
        *((EXECUTOR_NODE, file, disagreements_of_node) for file in nodes),
        *((JOB_REGISTRY, file, disagreements_of_registry) for file in [registry] if file is not None),
    ]
    for name, file, disagreements in services:
        service = service_settings(name, file)
        config, _ = service.given.sound()
        found = [] if config is None else [each for one in before for each in disagreements(config, one)]
        all_right &= check(service, [service.given.placed(each) for each in dict.fromkeys(found)])
        if name == COORDINATOR and config is not None:
            before.append(config)
    return all_right


def show_service(service: ServiceSettings[Any]) -> None:
    """Print a service's settings as YAML with their sources. Raises InvalidArgument if they are not valid."""
    settings = service.given.settings()
    show_text(_lines(settings, settings.model_dump(mode="json"), (), service.given.sources))


def show_client() -> None:
    """Print what the environment says of a client, as YAML with sources."""
    environment = full_environment()
    lines = []
    for name, value in client_variables().items():
        shown = MASK if name == TOKEN_VARIABLE and value else value
        lines.append(f"{name}: {_inline(shown)}  # {'in the environment' if environment.get(name) else 'default'}")
    show_text(lines)


def _lines(
    section: BaseModel, values: dict[str, Any], at: Location, sources: Callable[[Location], list[str]]
) -> Iterator[str]:
    """A line for each setting, and one for each section, below which its own are indented."""
    indent = "  " * len(at)
    for name in type(section).model_fields:
        value, location = getattr(section, name), (*at, name)
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:"
            yield from _lines(value, values[name], location, sources)
        else:
            source = ", ".join(each.removeprefix("in ") for each in sources(location)) or "default"
            yield f"{indent}{name}: {_inline(values[name])}  # {printable(source)}"


def _inline(value: Any) -> str:
    """A value as YAML on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=float("inf"), allow_unicode=False)
    return text.removesuffix("...\n").rstrip("\n")
