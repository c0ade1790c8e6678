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
from fanfold.cli.service_settings import COORDINATOR, EXECUTOR_NODE, JOB_REGISTRY, PREFIXES
from fanfold.otel.settings import TraceSettings
from fanfold.rpc.auth.settings import AuthSettings, ClientSettings, TlsSettings
from fanfold.settings.variables import variable_of
from job_registry.config import JobRegistryConfig
from tools.pages import write_pages
from tools.setting_values import values_of

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"

SERVICES: dict[str, tuple[type[BaseModel], str]] = {
    "coordinator": (CoordinatorConfig, PREFIXES[COORDINATOR]),
    "executor-node": (ExecutorNodeConfig, PREFIXES[EXECUTOR_NODE]),
    "job-registry": (JobRegistryConfig, PREFIXES[JOB_REGISTRY]),
}

SHARED: dict[str, type[BaseModel]] = {
    "auth": AuthSettings,
    "tls": TlsSettings,
    "client": ClientSettings,
    "traces": TraceSettings,
}
"""Sections that services have in common."""

_ANY_PREFIX = "FANFOLD_*__"

_SHARED_HEAD = """
## Sections of several services

What they are for is told in [security.md](security.md), and of traces in [operations.md](operations.md#traces). Their
variables begin as those of the service.
"""

_HEAD = """\
# Configuration

`fanfold serve SERVICE --config FILE` reads one YAML file (or TOML, if it is called so). Over the file comes the
environment, and over that the options `--listen` and `--metrics-listen`. The key `limits.steps` of the coordinator is
the variable `FANFOLD_COORDINATOR__LIMITS__STEPS`; lists and mappings are given as JSON, and a mapping of names may be
given in parts, as `FANFOLD_NODE__LABELS__DISK=fast`. Durations are in seconds.

Files and folders that are given without a leading slash are looked for from the folder in which the service is started.

Unknown keys are refused, with the one that was probably meant. Variables that are called like these and mean nothing
are told in the log, but for those that Kubernetes makes up for its services.

No secret is a setting. Tokens, passwords and keys are in files that settings name, or where a library looks for them in
the environment (`PGPASSWORD`).

## Before a service starts

    fanfold serve coordinator --check-config
    fanfold config show coordinator

`--check-config`, beside the options that the service is to have, says all that is wrong, each with its key and the line
of the file or the variable that it comes from: values and unknown keys; settings that contradict one another, as leases
and renewals; files that cannot be read, certificates that have expired, keys that are not theirs; agent files;
addresses that are none. It starts nothing, asks nobody and writes nothing. Exit code 0: nothing is wrong; 2: something
is. A service that is started all the same refuses what cannot work, and tells contradictions in its log.

Some settings have to go with those of other services, as nodes' graces with their coordinators' leases, and the names
of coordinators on one journal. The files of all can be checked together, each for itself and then with one another:
`fanfold config check --coordinator FILE --node FILE --job-registry FILE`, with any number of coordinators and nodes.

`fanfold config show SERVICE` prints every setting as it would hold, as YAML that can be given as FILE, and beside each
the file and line, the variable or `default`. `fanfold config show client` shows what holds for clients.

## Clients

Clients find the coordinator by `--server` or `FANFOLD_SERVER`, else at 127.0.0.1:7400, and the job registry by
`--registry` or `FANFOLD_REGISTRY`, else at 127.0.0.1:7401. They show them `FANFOLD_TOKEN`, or what is in
`FANFOLD_TOKEN_FILE`; with `FANFOLD_TLS=1`, or any of `FANFOLD_CA`, `FANFOLD_CERT`, `FANFOLD_KEY` and
`FANFOLD_SERVER_NAME`, they speak TLS. `FANFOLD_PLAINTEXT_TOKEN=1` has them show the token to others without it.

This page is written by `python -m tools.configuration` from the settings' definitions.
"""


def main(arguments: list[str]) -> int:
    """Write the page, or with --check say by 1 that it is stale."""
    return write_pages({PAGE: render()}, arguments)


def render() -> str:
    """The page."""
    parts = [_HEAD]
    for service, (model, prefix) in SERVICES.items():
        parts += [f"\n## {service}\n\n", *_table(_rows(model, "", prefix))]
    parts.append(_SHARED_HEAD)
    for name, section in SHARED.items():
        rows = _rows(section, f"{name}.", _ANY_PREFIX)
        parts += [f"\n### {name}\n\n{inspect.getdoc(section)}\n\n", *_table(rows)]
    return "".join(parts)


def _table(rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield "| Key, variable | Default | Values | What it is |\n|---|---|---|---|\n"
    yield from (f"| {' | '.join(row)} |\n" for row in rows)


def _rows(model: type[BaseModel], path: str, prefix: str) -> Iterator[tuple[str, ...]]:
    """A row for each setting; those in lists have no variable of their own, so no `prefix`."""
    for name, field in model.model_fields.items():
        kind, key = field.annotation, f"{path}{name}"
        if kind in SHARED.values():
            yield f"`{key}`", "none", "", f"See [below](#{name})."
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _rows(kind, f"{key}.", prefix)
        else:
            variable = f"<br>`{variable_of(prefix, tuple(key.split('.')))}`" if prefix else ""
            words = " ".join((field.description or "").split())
            yield f"`{key}`{variable}", _default(field), values_of(field), words
            for part in get_args(kind):
                if isinstance(part, type) and issubclass(part, BaseModel):
                    yield from _rows(part, f"{key}[].", "")


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "made up or the host's"
    if field.is_required():
        return "to be given"
    value: Any = field.default
    if value in (None, "", (), [], {}):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        value = ", ".join(map(str, value))
    if isinstance(value, float):
        value = f"{value:g}" if value < 1_000_000 else round(value)
    return f"`{value}`"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
