"""Writes docs/configuration.md from the settings' own definitions: `python -m tools.configuration [--check]`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from coordinator.config import CoordinatorConfig
from executor_node.config import ExecutorNodeConfig
from job_registry.config import JobRegistryConfig

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"

SERVICES: dict[str, tuple[type[BaseModel], str]] = {
    "coordinator": (CoordinatorConfig, "FANFOLD_COORDINATOR__"),
    "executor-node": (ExecutorNodeConfig, "FANFOLD_NODE__"),
    "job-registry": (JobRegistryConfig, "FANFOLD_JOB_REGISTRY__"),
}

_HEAD = """\
# Configuration

`fanfold serve SERVICE --config FILE` reads one YAML file (or TOML, if it is called so). Over the file comes the
environment: the key `limits.steps` of the coordinator is the variable `FANFOLD_COORDINATOR__LIMITS__STEPS`; lists and
mappings are given as JSON. Unknown keys are refused. Durations are in seconds. Clients find the coordinator by
`--server` or `FANFOLD_SERVER`, else at 127.0.0.1:7400.

This page is written by `python -m tools.configuration` from the settings' definitions.
"""


def main(arguments: list[str]) -> int:
    """Write the page, or with --check say by 1 that it is stale."""
    page = render()
    if "--check" in arguments:
        return int(not PAGE.exists() or PAGE.read_text() != page)
    PAGE.write_text(page)
    return 0


def render() -> str:
    """The page."""
    parts = [_HEAD]
    for service, (model, prefix) in SERVICES.items():
        parts.append(
            f"\n## {service}\n\nVariables begin with `{prefix}`.\n\n| Key | Default | What it is |\n|---|---|---|\n"
        )
        parts += [f"| `{key}` | {default} | {words} |\n" for key, default, words in _rows(model, "")]
    return "".join(parts)


def _rows(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str]]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _rows(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _default(field), " ".join((field.description or "").split())


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "made up or the host's"
    value: Any = field.default
    if value is None or value == "":
        return "none"
    return f"`{value}`"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
