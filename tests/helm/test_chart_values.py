"""Values that make no sense are refused, in words that say which and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.charts import CHART, Helm

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"coordinater": {}}, "additional properties 'coordinater' not allowed"),
    ({"coordinator.config.limitz": {}}, "at '/coordinator/config': additional properties 'limitz' not allowed"),
    ({"coordinator.config.limits.steps": 0}, "at '/coordinator/config/limits/steps': minimum: got 0, want 1"),
    ({"coordinator.config.listen": "0.0.0.0:1"}, "at '/coordinator/config': additional properties 'listen'"),
    ({"coordinator.config.journal.url": "postgresql://x/y"}, "additional properties 'url' not allowed"),
    ({"jobRegistry.config.open_jobs": "maybe"}, "at '/jobRegistry/config/open_jobs': got string, want boolean"),
    ({"executorNodes.pools.a.config.drain_grace": "long"}, "at '/executorNodes/pools/a/config/drain_grace'"),
    ({"executorNodes.pools.a.replica": 2}, "at '/executorNodes/pools/a': additional properties 'replica'"),
    ({"executorNodes.pools.Big": {}}, "at '/executorNodes/pools': additional properties 'Big' not allowed"),
    ({"executorNodes.pools.a.secretEnv.KEY": {"secret": "x"}}, "missing property 'key'"),
    ({"tls.mode": "on"}, "at '/tls/mode': value must be one of 'none', 'certManager', 'secrets'"),
    ({"auth.jwt": [{"issuer": "x"}]}, "at '/auth/jwt/0': missing properties 'audience', 'jwks'"),
    ({"auth.kubernetes.principals": {"ci": ["caller"]}}, "additional properties 'ci' not allowed"),
    ({"auth.kubernetes.principals": {"a/b": ["coordinator"]}}, "value must be one of 'caller'"),
    ({"coordinator.resources.limits.memory": "lots"}, "at '/coordinator/resources/limits/memory'"),
    ({"postgres.url": "mysql://x/y"}, "at '/postgres/url'"),
    ({"coordinator.replicas": 2}, "coordinator.replicas: more than one needs postgres.url"),
    ({"jobRegistry.replicas": 2}, "jobRegistry.replicas: more than one needs postgres.url"),
    ({"postgres.url": "postgresql://me:hunter2@db/x"}, "postgres.url: must have no password"),
    (
        {"executorNodes.pools.a.workspace.git.url": "https://hunter2@git.example.com/x"},
        "pools.a.workspace.git.url: must",
    ),
    ({"tls.mode": "certManager"}, "tls.certManager.issuer.name: tls.mode certManager needs it"),
    ({"tls.mode": "secrets"}, "tls.secrets.coordinator: tls.mode secrets needs it"),
    ({"auth.kubernetes.enabled": False}, "auth.kubernetes.enabled: without TLS"),
    ({"executorNodes.pools.default": None}, "executorNodes.pools: a mesh without nodes runs no steps"),
]


@pytest.mark.parametrize(("values", "words"), WRONG, ids=[next(iter(values)) for values, _ in WRONG])
def test_a_wrong_value_is_refused_and_named(helm: Helm, values: dict[str, Any], words: str) -> None:
    assert words in helm.refusal(values)


def test_no_level_of_the_schema_takes_keys_that_it_does_not_know() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    open_levels = {where for where, level in _objects(schema, "") if level.get("additionalProperties", True) is True}
    assert open_levels == {".global"}  # Helm's own


def _objects(schema: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema of an object, and where it is."""
    match schema:
        case dict():
            if schema.get("type") == "object" or "properties" in schema:
                yield where, schema
            for key, below in schema.get("properties", {}).items():
                yield from _objects(below, f"{where}.{key}")
            for key, below in schema.items():
                if key != "properties":
                    yield from _objects(below, where)
        case list():
            for below in schema:
                yield from _objects(below, where)
