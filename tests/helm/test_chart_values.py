"""Values that make no sense are refused, in words that say which and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from coordinator.config import CoordinatorConfig
from executor_node.config import ExecutorNodeConfig
from fanfold.cli.agreement import disagreements_of_node, disagreements_of_registry
from job_registry.config import JobRegistryConfig
from support.charts import CHART, NAMESPACE, Helm, assignments, disagreements, of_kind

OWN = {"coordinator": "a", "jobRegistry": "b", "executorNode": "c"}
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
    ({"fullnameOverride": "a.b"}, "at '/fullnameOverride': 'a.b' does not match pattern"),
    ({"user": 0}, "at '/user': minimum: got 0, want 1"),
    ({"coordinator.config.journal.objects": "/x"}, "additional properties 'objects' not allowed"),
    (
        {"coordinator.service.type": "LoadBalancer"},
        "coordinator.service.type: nobody from beyond the cluster is let in",
    ),
    ({"postgres.url": "postgresql://me@db/x?password=hunter2"}, "postgres.url: must have no password"),
    ({"postgres.url": "postgresql://db/x?a=b&oauth_client_secret=hunter2"}, "postgres.url: must have no password"),
    ({"postgres.url": "postgresql://db:6432/x"}, "postgres.url: port 6432 is not one of networkPolicy.database.ports"),
    ({"postgres.url": "postgresql://a:5432,b:5432/x"}, "postgres.url: must have one port"),
    ({"postgres.url": "postgresql://a,b:6432/x"}, "postgres.url: port 6432 is not one of"),
    (
        {"postgres.url": "postgresql://db/x?sslrootcert=/etc/fanfold-database/ca.crt"},
        "postgres.ca.secret: the file that",
    ),
    ({"postgres.password.secret": "db"}, "postgres.url: postgres.password and postgres.ca are of no use without it"),
    ({"coordinator.config.traces.endpoint": "https://x"}, "coordinator.config.traces.endpoint: port 443 is not one of"),
    (
        {"executorNodes.pools.a.config.traces.ca": "/etc/fanfold-traces/ca.crt"},
        "traces.secret: the files that executorNodes.pools.a.config.traces names come from there",
    ),
    ({"coordinator.config.nodes.static": ["x:99"]}, "coordinator.config.nodes.static: port 99 is not one of"),
    (
        {"auth.jwt": [{"issuer": "x", "audience": "y", "jwks": "https://x:8443/jwks"}]},
        "auth.jwt: port 8443 is not one of networkPolicy.issuers.ports",
    ),
    (
        {"auth.kubernetes.principals": {f"{NAMESPACE}/fanfold-coordinator": ["caller"]}},
        "auth.kubernetes.principals.mesh/fanfold-coordinator: is the coordinators' own",
    ),
    ({"tls.mode": "secrets", "tls.secrets": OWN, "auth.kubernetes.enabled": False}, "auth: nobody could call"),
    ({"tls.certManager.duration": "1h"}, "tls.certManager.renewBefore: must be less than tls.certManager.duration"),
    ({"tls.trustDomain": "a: b"}, "at '/tls/trustDomain'"),
    (
        {"executorNodes.pools.a.workspace.git.url": "git@example.com:x/y"},
        "at '/executorNodes/pools/a/workspace/git/url'",
    ),
    (
        {"executorNodes.pools.a.workspace": {"claim": "x", "git": {"url": "https://x/y"}}},
        "pools.a.workspace.git.url: would be cloned by every node into the one workspace.claim",
    ),
    (
        {"executorNodes.pools.a.scratch": "40Gi"},
        "pools.a.resources.limits.ephemeral-storage: must have room for scratch",
    ),
    ({"executorNodes.pools.a.scratch": 40 * 2**30}, "pools.a.resources.limits.ephemeral-storage: must have room for"),
    ({"executorNodes.pools.a.autoscaling": {"kind": "keda", "minReplicas": 20}}, "minReplicas: must not be more than"),
    ({"executorNodes.pools.a.autoscaling": {"kind": "hpa", "stepsPerNode": 16}}, "stepsPerNode: hpa adds no node"),
    (
        {"networkPolicy.callers": [{"cidr": "10.0.0.0/8", "pods": {}}]},
        "at '/networkPolicy/callers/0': maxProperties: got 2",
    ),
    ({"coordinator.config.traces.endpoint": "http://me:hunter2@x:4318"}, "traces.endpoint: must have no password"),
    (
        {"tls.mode": "secrets", "tls.secrets": dict.fromkeys(OWN, "one")},
        "tls.secrets.executorNode: must be the nodes' own",
    ),
    ({"tls": None}, "at '': missing property 'tls'"),
    ({"listen": None}, "at '': missing property 'listen'"),
    ({"networkPolicy.dns": None}, "at '/networkPolicy': missing property 'dns'"),
]


@pytest.mark.parametrize(("values", "words"), WRONG, ids=[next(iter(values)) for values, _ in WRONG])
def test_a_wrong_value_is_refused_and_named(helm: Helm, values: dict[str, Any], words: str) -> None:
    assert words in helm.refusal(values)


RIGHT: list[dict[str, Any]] = [
    {"postgres.url": "postgresql://a,b/x?target_session_attrs=read-write&require_auth=scram-sha-256"},
    {"postgres.url": "postgresql://a,b:6432/x", "networkPolicy.database.ports": [6432]},
    {"postgres.url": "postgresql://db:6432/x", "networkPolicy.database.ports": [6432]},
    {"postgres.url": "postgresql://db:6432/x", "networkPolicy.enabled": False},
    {"coordinator.service.type": "NodePort", "networkPolicy.callers": [{"cidr": "10.0.0.0/8"}]},
    {"auth.jwt": [{"issuer": "x", "audience": "y", "jwks": "/etc/keys.json"}]},
    {"networkPolicy.callers": None, "topologySpread": None, "image.tag": None, "coordinator.resources.limits": None},
    {"postgres.url": None, "executorNodes.defaults.workspace.git.url": None, "user": None, "traces.secret": None},
    {"executorNodes.pools.a.resources.limits.ephemeral-storage": 24 * 2**30},
    {"executorNodes.pools.a.scratch": 2 * 2**30, "executorNodes.pools.a.resources.limits.ephemeral-storage": "12Gi"},
    {"tls.mode": "secrets", "tls.secrets": OWN, "auth.kubernetes.enabled": False, "auth.tokens.secret": "tokens"},
]


@pytest.mark.parametrize("values", RIGHT, ids=str)
def test_values_that_go_with_one_another_are_taken(helm: Helm, values: dict[str, Any]) -> None:
    assert disagreements(helm.template("--set-json", *assignments(values))) == []


def test_the_test_of_the_release_is_one_that_can_pass(helm: Helm) -> None:
    manifests = helm.template("--set-json", *assignments(RIGHT[-1]))
    assert not of_kind(manifests, "Pod")  # as no account may call
    agents = {"executorNodes.defaults.config.agents.builtin": False}
    (pod,) = of_kind(helm.template("--set-json", *assignments(agents)), "Pod")
    assert pod["spec"]["containers"][0]["command"] == ["fanfold", "nodes"]  # as no agent is known that there is


def test_the_notes_are_of_these_values(helm: Helm) -> None:
    values = assignments({"tls.mode": "secrets", "tls.secrets": OWN, "auth.kubernetes.audience": "our mesh"})
    told = helm.run(
        "install", "fanfold", str(CHART), "--namespace", NAMESPACE, "--dry-run=client", "--set-json", *values
    )
    notes = told.stdout.partition("\nNOTES:\n")[2]
    assert f"kubectl --namespace {NAMESPACE} create token fanfold-caller --audience 'our mesh'" in notes
    assert f"kubectl --namespace {NAMESPACE} get secret a --output" in notes
    assert "fanfold --ca ca.pem nodes" in notes
    assert "plaintext" not in notes


AGREEING: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({}, {"step": {"stop_grace": 5.9}}, {}),
    ({}, {"step": {"stop_grace": 6}}, {}),
    ({"nodes": {"lease_grace": 5}}, {}, {}),
    ({"nodes": {"lease_grace": 20}}, {"step": {"stop_grace": 8.9}}, {}),
    ({"nodes": {"lease_grace": 20}}, {"step": {"stop_grace": 9}}, {}),
    ({}, {"silence_limit": 20.9}, {}),
    ({}, {"silence_limit": 21}, {}),
    ({"nodes": {"lease": 4}}, {}, {}),
    ({}, {}, {"producers": {"grace": 40.6}}),
    ({}, {}, {"producers": {"grace": 40.5}}),
    ({"journal": {"outage": 0}}, {}, {"producers": {"grace": 10.6}}),
    ({"journal": {"outage": 60}}, {}, {}),
]
"""Settings of coordinators, nodes and registry, right each, of which about half contradict another service's."""


@pytest.mark.contract("F2")
@pytest.mark.parametrize(("coordinator", "node", "registry"), AGREEING, ids=str)
def test_settings_that_contradict_another_services_are_refused(
    helm: Helm, coordinator: dict[str, Any], node: dict[str, Any], registry: dict[str, Any]
) -> None:
    config = CoordinatorConfig.model_validate({"registry": "x:1", **coordinator})
    wrong = [
        *disagreements_of_node(ExecutorNodeConfig.model_validate(node), config),
        *disagreements_of_registry(JobRegistryConfig.model_validate(registry), config),
    ]
    values = {
        "coordinator.config": coordinator,
        "jobRegistry.config": registry,
        "executorNodes.pools.default.config": node,
    }
    if wrong:
        assert wrong[0].field in helm.refusal(values)
    else:
        assert helm.template("--set-json", *assignments(values))


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
