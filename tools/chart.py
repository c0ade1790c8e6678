"""Writes what follows from other files in helm/fanfold: `python -m tools.chart [--check]`.

values.schema.json comes from helm/schema.yaml and the services' own settings, README.md from the comments in
values.yaml.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from coordinator.config import CoordinatorConfig
from executor_node.config import ExecutorNodeConfig
from fanfold.rpc.auth.settings import JwtIssuer
from job_registry.config import JobRegistryConfig
from tools.pages import write_pages

HELM = Path(__file__).parent.parent / "helm"
CHART = HELM / "fanfold"

_DATABASE = ("path", "url", "password_file")
_SERVING = ("listen", "metrics_listen", "auth", "tls", "exit_with_parent")

OWNED: dict[str, tuple[type[BaseModel], tuple[str, ...]]] = {
    "coordinator": (
        CoordinatorConfig,
        (
            *_SERVING,
            *("name", "advertise", "client", "registry", "nodes.dns"),
            *(f"journal.{key}" for key in (*_DATABASE, "objects")),
        ),
    ),
    "job-registry": (JobRegistryConfig, (*_SERVING, *(f"store.{key}" for key in _DATABASE))),
    "executor-node": (
        ExecutorNodeConfig,
        (
            *_SERVING,
            *("name", "advertise", "client", "announce_to", "workspace", "agents.directory", "agents.scratch"),
        ),
    ),
    "jwt": (JwtIssuer, ()),
}
"""The settings of each service, and of them those that the chart sees to, so that each thing is said once."""

_MAY_BE_NULL = ("config", "resources", "user")
"""Values that may be gone though they have a default that says something."""

_NOISE = ("title", "default", "$defs", "format")

_HEAD = """\
# fanfold

The Helm chart of Fanfold: coordinators, a job registry, and executor nodes in pools. How to begin, and what to think
of in production, is told in [docs/deploy.md](../../docs/deploy.md).

```sh
helm install fanfold helm/fanfold --namespace fanfold --create-namespace
```

Unknown values are refused. `config` of a service takes the settings of
[docs/configuration.md](../../docs/configuration.md), but for those that the chart sees to.

This page is written by `python -m tools.chart` from `values.yaml`.

## Values

| Value | Default | What it is |
|---|---|---|
"""


def main(arguments: list[str]) -> int:
    """Write the files, or with --check say by 1 that one is stale."""
    return write_pages({CHART / "values.schema.json": schema(), CHART / "README.md": readme()}, arguments)


def schema() -> str:
    """The schema of the chart's values, without references, as errors are easier to read so."""
    written = yaml.safe_load((HELM / "schema.yaml").read_text())
    known = written.pop("$defs") | {f"settings/{name}": _settings(*owned) for name, owned in OWNED.items()}
    whole = _inlined(written, known)
    _require(whole, yaml.safe_load((CHART / "values.yaml").read_text()))
    return json.dumps(whole, indent=1) + "\n"


def _require(schema: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    """Have what is null, or unknown to the values of a release before (`--reuse-values`), refused by name.

    That is, sections, and values whose default is not empty: where it is, null is the same.
    """
    properties = schema["properties"]
    said = {key: value for key, value in defaults.items() if key not in _MAY_BE_NULL and value}
    sections = [key for key in said if "properties" in properties[key]]
    schema["required"] = [key for key in said if key in sections or not isinstance(said[key], dict | list)]
    for key in sections:
        _require(properties[key], said[key])


def readme() -> str:
    """The chart's page."""
    text = (CHART / "values.yaml").read_text()
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    rows = _rows(root, yaml.safe_load(text), text.splitlines(), "")
    return _HEAD + "".join(f"| `{key}` | `{json.dumps(default)}` | {words} |\n" for key, default, words in rows)


def _settings(model: type[BaseModel], owned: tuple[str, ...]) -> dict[str, Any]:
    """The schema of some settings, less those that the chart sees to."""
    described = model.model_json_schema()
    settings: dict[str, Any] = _inlined(
        described, {f"#/$defs/{name}": it for name, it in described.get("$defs", {}).items()}
    )
    for path in owned:
        *sections, key = path.split(".")
        section = settings
        for name in sections:
            section = section["properties"][name]
        del section["properties"][key]
    return settings


def _inlined(part: Any, known: Mapping[str, Any]) -> Any:
    """A schema with what its references name in their place, and without what nobody reads."""
    match part:
        case {"$ref": str(name)}:
            return _inlined(known[name], known)
        case {"properties": Mapping() as properties}:  # whose keys are names of settings, as `default`
            rest = {key: value for key, value in part.items() if key != "properties"}
            return _inlined(rest, known) | {
                "properties": {key: _inlined(each, known) for key, each in properties.items()}
            }
        case Mapping():
            return {key: _inlined(value, known) for key, value in part.items() if key not in _NOISE}
        case list():
            return [_inlined(each, known) for each in part]
        case _:
            return part


def _rows(
    node: yaml.MappingNode, values: Mapping[str, Any], lines: list[str], prefix: str
) -> Iterator[tuple[str, Any, str]]:
    """The key, default and description of each value that has one, in the file's order."""
    for key, below in node.value:
        value = values[key.value]
        if words := _comment_above(lines, key.start_mark.line):
            yield prefix + key.value, value, words
        if isinstance(below, yaml.MappingNode) and value:
            yield from _rows(below, value, lines, f"{prefix}{key.value}.")


def _comment_above(lines: list[str], line: int) -> str:
    """The description that ends right above a line."""
    words: list[str] = []
    while line and (comment := lines[line - 1].strip()).startswith("#"):
        words.insert(0, comment.lstrip("# "))
        if comment.startswith("# --"):
            return " ".join(words).removeprefix("-- ").strip()
        line -= 1
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
