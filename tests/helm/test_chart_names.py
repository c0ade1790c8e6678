"""Whatever a release, and the things that its values name, are called: objects have names that a cluster takes."""

from __future__ import annotations

import re
from typing import Any

from support.charts import NAMESPACE, Helm, Manifest, assignments, named, of_kind, pods, service_pods, settings_of

SERVICE = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LONGEST_POOL = "abcdefghijklmnop"
LONGEST_STATEFUL_SET = 63 - len("-0123456789")
"""Its pods have its name with a hash as a label."""


def release(helm: Helm, name: str, **values: Any) -> list[Manifest]:
    """What the chart comes to for a release of that name, with a pool that has the longest."""
    pools: dict[str, Any] = {"default": None, LONGEST_POOL: {}}
    return helm.template("--set-json", *assignments({"executorNodes.pools": pools, **values}), release=name)


def names(manifests: list[Manifest], kind: str) -> set[str]:
    return {each["metadata"]["name"] for each in of_kind(manifests, kind)}


def test_names_are_short_enough_for_what_the_cluster_makes_of_them(helm: Helm) -> None:
    longest = "the-longest-name-that-helm-takes-for-a-release-is-53c"
    manifests = release(helm, longest)
    for name in names(manifests, "StatefulSet"):
        assert len(name) <= LONGEST_STATEFUL_SET
    for name in names(manifests, "Service"):
        assert SERVICE.fullmatch(name)
    (stateful,) = of_kind(manifests, "StatefulSet")
    assert stateful["spec"]["serviceName"] in names(manifests, "Service")


def test_long_releases_that_begin_alike_have_nothing_in_common(helm: Helm) -> None:
    one, other = (release(helm, f"a-mesh-for-the-team-that-is-called-{letter}") for letter in "ab")
    assert not {(each["kind"], each["metadata"]["name"]) for each in one} & {
        (each["kind"], each["metadata"]["name"]) for each in other
    }


def test_a_release_with_dots_has_services(helm: Helm) -> None:
    for name in names(release(helm, "team.mesh"), "Service"):
        assert SERVICE.fullmatch(name)


def test_own_names_are_taken(helm: Helm) -> None:
    manifests = release(helm, "x", fullnameOverride="agents", nameOverride="mesh")
    assert "agents-coordinator" in names(manifests, "Deployment")
    (stateful,) = of_kind(manifests, "StatefulSet")
    assert stateful["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"] == "mesh"


def test_texts_that_yaml_takes_for_something_else_stay_texts(helm: Helm) -> None:
    odd = ["1e3", "true", "null", "0x10", "1234"]
    key, secret, claim, account, config_map = odd
    values = {
        "auth.kubernetes.audience": "mesh: a #1",
        "auth.kubernetes.issuer": "*https://x",
        "auth.tokens": {"secret": secret, "key": key},
        "image.pullSecrets": odd,
        "coordinator.priorityClassName": account,
        "coordinator.persistence": {"existingClaim": claim, "size": "1Gi", "storageClass": ""},
        "jobRegistry.persistence.storageClass": "~",
        "executorNodes.defaults.secretEnv": {"NO": {"secret": secret, "key": key}},
        "executorNodes.defaults.agentsConfigMap": config_map,
        "executorNodes.defaults.workspace.claim": claim,
    }
    manifests = release(helm, "fanfold", **values)
    for _, spec in pods(manifests):
        assert spec["imagePullSecrets"] == [{"name": name} for name in odd]
    text = [settings_of(manifests, name)["auth"]["jwt"][0] for name, _ in service_pods(manifests)]
    assert {(issuer["audience"], issuer["issuer"]) for issuer in text} == {("mesh: a #1", "*https://x")}
    coordinator = named(manifests, "Deployment", "fanfold-coordinator")["spec"]["template"]["spec"]
    volumes = {volume.pop("name"): volume for volume in coordinator["volumes"]}
    assert coordinator["priorityClassName"] == account
    assert volumes["data"] == {"persistentVolumeClaim": {"claimName": claim}}
    assert volumes["tokens"]["secret"]["secretName"] == secret
    assert volumes["tokens"]["secret"]["items"] == [{"key": key, "path": "tokens.yaml"}]
    assert volumes["mesh"]["projected"]["sources"][0]["serviceAccountToken"]["audience"] == "mesh: a #1"
    registry = named(manifests, "PersistentVolumeClaim", "fanfold-job-registry")
    assert registry["spec"]["storageClassName"] == "~"
    node = named(manifests, "StatefulSet", f"fanfold-node-{LONGEST_POOL}")["spec"]["template"]["spec"]
    variables = {each["name"]: each for each in node["containers"][0]["env"]}
    assert variables["NO"]["valueFrom"] == {"secretKeyRef": {"name": secret, "key": key}}
    projected = {volume["name"]: volume for volume in node["volumes"]}
    assert projected["agents"]["projected"]["sources"] == [{"configMap": {"name": config_map}}]
    assert projected["workspace"]["persistentVolumeClaim"] == {"claimName": claim}


def test_names_that_yaml_takes_for_something_else_stay_names(helm: Helm) -> None:
    values = assignments({"fullnameOverride": "x", "nameOverride": "true"})
    for manifest in helm.template("--set-json", *values, release="1e3", namespace="1234"):
        assert manifest["metadata"]["namespace"] == "1234"
        labels = manifest["metadata"]["labels"]
        assert (labels["app.kubernetes.io/instance"], labels["app.kubernetes.io/name"]) == ("1e3", "true")
        selector = manifest.get("spec", {}).get("selector", {})
        assert all(isinstance(value, str) for value in selector.get("matchLabels", selector).values())


def test_roles_of_the_callers_own_account_can_be_changed(helm: Helm) -> None:
    manifests = helm.template(
        "--set-json", f'auth.kubernetes.principals={{"{NAMESPACE}/fanfold-caller": ["operator"]}}'
    )
    (issuer,) = settings_of(manifests, "fanfold-job-registry")["auth"]["jwt"]
    assert issuer["principals"] == {
        f"system:serviceaccount:{NAMESPACE}:fanfold-caller": ["operator"],
        f"system:serviceaccount:{NAMESPACE}:fanfold-coordinator": ["coordinator"],
    }


def test_who_processes_are_can_be_left_to_the_cluster(helm: Helm) -> None:
    for _, spec in pods(helm.template("--set-json", "user=null")):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & spec["securityContext"].keys()
