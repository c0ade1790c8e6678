"""Writes docs/configuration.md from the settings' own definitions: `python -m tools.configuration [--check]`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from coordinator.config import CoordinatorConfig
from executor_node.config import ExecutorNodeConfig
from fanfold.rpc.auth.settings import AuthSettings, ClientSettings, TlsSettings
from job_registry.config import JobRegistryConfig

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"

SERVICES: dict[str, tuple[type[BaseModel], str]] = {
    "coordinator": (CoordinatorConfig, "FANFOLD_COORDINATOR__"),
    "executor-node": (ExecutorNodeConfig, "FANFOLD_NODE__"),
    "job-registry": (JobRegistryConfig, "FANFOLD_JOB_REGISTRY__"),
}

SHARED: dict[str, type[BaseModel]] = {"auth": AuthSettings, "tls": TlsSettings, "client": ClientSettings}
"""Sections that services have in common."""

_SHARED_HEAD = """
## Sections of several services

What they are for is told in [security.md](security.md).
"""

_HEAD = """\
# Configuration

`fanfold serve SERVICE --config FILE` reads one YAML file (or TOML, if it is called so). Over the file comes the
environment: the key `limits.steps` of the coordinator is the variable `FANFOLD_COORDINATOR__LIMITS__STEPS`; lists and
mappings are given as JSON. Unknown keys are refused. Durations are in seconds.

Clients find the coordinator by `--server` or `FANFOLD_SERVER`, else at 127.0.0.1:7400. They show it `FANFOLD_TOKEN`, or
what is in `FANFOLD_TOKEN_FILE`; with `FANFOLD_TLS=1`, or any of `FANFOLD_CA`, `FANFOLD_CERT`, `FANFOLD_KEY` and
`FANFOLD_SERVER_NAME`, they speak TLS. `FANFOLD_PLAINTEXT_TOKEN=1` has them show the token to others without it.

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
        parts += [f"\n## {service}\n\nVariables begin with `{prefix}`.\n\n", *_table(_rows(model, ""))]
    parts.append(_SHARED_HEAD)
    for name, section in SHARED.items():
        parts += [f"\n### {name}\n\n{inspect.getdoc(section)}\n\n", *_table(_rows(section, f"{name}."))]
    return "".join(parts)


def _table(rows: Iterator[tuple[str, str, str]]) -> Iterator[str]:
    yield "| Key | Default | What it is |\n|---|---|---|\n"
    yield from (f"| `{key}` | {default} | {words} |\n" for key, default, words in rows)


def _rows(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str]]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if kind in SHARED.values():
            yield f"{prefix}{name}", "none", f"See [below](#{name})."
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _rows(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _default(field), " ".join((field.description or "").split())
            for part in get_args(kind):
                if isinstance(part, type) and issubclass(part, BaseModel):
                    yield from _rows(part, f"{prefix}{name}[].")


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "made up or the host's"
    if field.is_required():
        return "to be given"
    value: Any = field.default
    if value in (None, "", ()):
        return "none"
    if isinstance(value, tuple):
        value = ", ".join(map(str, value))
    return f"`{value}`"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
