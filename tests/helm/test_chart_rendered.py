"""What the chart renders, with each of its sets of values, is what a cluster takes and what the services can read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate.utils
import pytest
import yaml

from executor_node.config import ExecutorNodeConfig
from fanfold.rpc.server import CLEAN_UP_SECONDS
from fanfold.rpc.serving import LAST_CALLS_SECONDS
from fanfold.settings import load_settings
from support.charts import (
    CHART,
    SETTINGS,
    VALUE_SETS,
    Helm,
    Manifest,
    disagreements,
    grave_findings,
    named,
    of_kind,
    pods,
    service_pods,
    settings_of,
)

KUBERNETES = ("1.31", "1.35", "1.37")
FOREIGN = {"Certificate", "ServiceMonitor", "PrometheusRule", "ScaledObject"}
"""Kinds that others bring to a cluster."""

every_set = pytest.mark.parametrize("values", VALUE_SETS)


def test_there_are_enough_sets_of_values() -> None:
    assert {"minimal", "postgres-ha", "mtls", "pools", "monitoring", "everything"} <= set(VALUE_SETS)


@every_set
def test_helm_has_nothing_to_say_against_it(helm: Helm, values: str) -> None:
    told = helm.run("lint", "--strict", str(CHART), "--values", str(CHART / "ci" / f"{values}-values.yaml"))
    assert told.returncode == 0, told.stdout + told.stderr


@pytest.fixture(scope="module")
def validate() -> Iterator[Callable[..., str]]:
    """The validator, which by itself reads megabytes of schemas for each object."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kubernetes_validate.utils, "schema_contents", cache(kubernetes_validate.utils.schema_contents))
        yield kubernetes_validate.validate


@every_set
@pytest.mark.parametrize("version", KUBERNETES)
def test_each_version_of_kubernetes_takes_all_of_it(
    helm: Helm, validate: Callable[..., str], values: str, version: str
) -> None:
    checked = 0
    for manifest in helm.render(values):
        if manifest["kind"] not in FOREIGN:
            validate(manifest, version, strict=True)
            checked += 1
    assert checked > 15


def test_the_validator_refuses_what_no_version_knows(helm: Helm, validate: Callable[..., str]) -> None:
    wrong = yaml.safe_load(yaml.safe_dump(of_kind(helm.render("minimal"), "Deployment")[0]))
    wrong["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    for version in KUBERNETES:
        with pytest.raises(kubernetes_validate.ValidationError):
            validate(wrong, version, strict=True)


@every_set
def test_nothing_is_there_twice_and_everything_is_in_the_namespace(helm: Helm, values: str) -> None:
    manifests = helm.render(values)
    names = Counter((manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests)
    assert [name for name, count in names.items() if count > 1] == []
    assert {manifest["metadata"]["namespace"] for manifest in manifests} == {"mesh"}


@every_set
def test_selectors_match_their_own_pods_and_no_others(helm: Helm, values: str) -> None:
    manifests = helm.render(values)
    owners = of_kind(manifests, "Deployment", "StatefulSet")
    for selecting in (*owners, *of_kind(manifests, "Service", "PodDisruptionBudget")):
        selector = selecting["spec"]["selector"]
        wanted = selector.get("matchLabels", selector)
        found = [
            owner["metadata"]["name"]
            for owner in owners
            if wanted.items() <= owner["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert found == [selecting["metadata"]["name"].removesuffix("-external")]


@every_set
def test_the_services_can_read_their_settings(helm: Helm, values: str, tmp_path: Path) -> None:
    manifests = helm.render(values)
    for name, spec in service_pods(manifests):
        service = spec["containers"][0]["name"]
        file = tmp_path / f"{name}.yaml"
        file.write_text(named(manifests, "ConfigMap", name)["data"]["settings.yaml"])
        assert load_settings(SETTINGS[service], file=file, env_prefix="UNSET__")


@every_set
def test_the_settings_of_services_go_with_one_another(helm: Helm, values: str) -> None:
    assert disagreements(helm.render(values)) == []


@every_set
def test_pods_may_do_nothing_that_they_need_not(helm: Helm, values: str) -> None:
    for name, spec in pods(helm.render(values)):
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"requests", "limits"} <= container["resources"].keys()


@every_set
def test_every_mount_has_a_volume_and_every_file_of_the_settings_a_mount(helm: Helm, values: str) -> None:
    manifests = helm.render(values)
    for name, spec in service_pods(manifests):
        volumes = [volume["name"] for volume in spec["volumes"]]
        assert len(volumes) == len(set(volumes))
        mounts = spec["containers"][0]["volumeMounts"]
        further = [mount for container in spec.get("initContainers", ()) for mount in container["volumeMounts"]]
        assert {mount["name"] for mount in (*mounts, *further)} == set(volumes)
        folders = [mount["mountPath"] + "/" for mount in mounts]
        for file in _files_in(settings_of(manifests, name)):
            assert any(f"{file}/".startswith(folder) for folder in folders), f"{name}: {file}"


def _files_in(settings: Any) -> list[str]:
    match settings:
        case dict():
            return [file for value in settings.values() for file in _files_in(value)]
        case list():
            return [file for value in settings for file in _files_in(value)]
        case str() if settings.startswith("/"):
            return [settings]
        case _:
            return []


@every_set
@pytest.mark.contract("C43")
def test_a_pod_is_killed_only_after_it_has_drained(helm: Helm, values: str) -> None:
    manifests = helm.render(values)
    for name, spec in service_pods(manifests):
        config = SETTINGS[spec["containers"][0]["name"]].model_validate(settings_of(manifests, name))
        needed = getattr(config, "drain_grace") + LAST_CALLS_SECONDS + CLEAN_UP_SECONDS  # noqa: B009 - each has it
        if isinstance(config, ExecutorNodeConfig):
            needed += config.step.stop_grace
        if lifecycle := spec["containers"][0].get("lifecycle"):
            needed += int(lifecycle["preStop"]["exec"]["command"][1])
        assert needed < spec["terminationGracePeriodSeconds"] < math.ceil(needed) + 20


@pytest.mark.contract("C43")
def test_it_is_so_too_where_the_values_leave_that_to_the_services(helm: Helm) -> None:
    unset = ("coordinator.config", "jobRegistry.config.drain_grace", "executorNodes.defaults.config")
    manifests = helm.template("--set-json", ",".join(f"{key}=null" for key in unset))
    for name, spec in service_pods(manifests):
        config = SETTINGS[spec["containers"][0]["name"]].model_validate(settings_of(manifests, name))
        assert spec["terminationGracePeriodSeconds"] > getattr(config, "drain_grace") + LAST_CALLS_SECONDS  # noqa: B009


@pytest.mark.contract("C43")
def test_one_of_several_replicas_takes_calls_until_the_cluster_sends_none(helm: Helm) -> None:
    for values, several in (("minimal", set[str]()), ("postgres-ha", {"fanfold-coordinator", "fanfold-job-registry"})):
        found = {name for name, spec in service_pods(helm.render(values)) if "lifecycle" in spec["containers"][0]}
        assert found == several


def test_services_have_the_time_to_bring_a_large_database_up_to_date(helm: Helm) -> None:
    manifests = helm.render("postgres-ha")
    for _, spec in service_pods(manifests):
        probe = spec["containers"][0]["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] >= 1800
    for deployment in of_kind(manifests, "Deployment"):
        grace = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert deployment["spec"]["progressDeadlineSeconds"] >= 1800 + grace


def test_broken_pods_do_not_keep_a_machine_from_being_emptied(helm: Helm) -> None:
    for budget in of_kind(helm.render("minimal"), "PodDisruptionBudget"):
        assert budget["spec"]["maxUnavailable"] == 1  # of one replica, too
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


@every_set
def test_a_change_of_the_settings_replaces_the_pods(helm: Helm, values: str) -> None:
    arguments = ("--values", str(CHART / "ci" / f"{values}-values.yaml"))
    before, after = helm.render(values), helm.template(*arguments, "--set", "auth.kubernetes.audience=another")
    for owner in of_kind(before, "Deployment", "StatefulSet"):
        kind, name = owner["kind"], owner["metadata"]["name"]
        changed = settings_of(before, name) != settings_of(after, name)
        assert (_checksum(owner) != _checksum(named(after, kind, name))) is changed
    assert settings_of(before, _coordinator(before)) != settings_of(after, _coordinator(after))


def _checksum(owner: Manifest) -> str:
    checksum: str = owner["spec"]["template"]["metadata"]["annotations"]["checksum/settings"]
    return checksum


def _coordinator(manifests: list[Manifest]) -> str:
    return next(name for name, spec in service_pods(manifests) if spec["containers"][0]["name"] == "coordinator")


@every_set
def test_coordinators_know_the_addresses_of_all_others(helm: Helm, values: str) -> None:
    manifests = helm.render(values)
    settings = settings_of(manifests, _coordinator(manifests))
    services = of_kind(manifests, "Service")
    there = {f"{it['metadata']['name']}.mesh.svc:{port['port']}" for it in services for port in it["spec"]["ports"]}
    assert {*settings["nodes"]["dns"], settings["registry"]} <= there
    headless = [it["metadata"]["name"] for it in services if it["spec"].get("clusterIP") == "None"]
    assert sorted(address.split(".")[0] for address in settings["nodes"]["dns"]) == sorted(headless)


def test_the_scanner_finds_nothing_grave(helm: Helm, tmp_path: Path) -> None:
    for values in ("minimal", "pools", "everything"):  # which have all that there is
        (tmp_path / f"{values}.yaml").write_text(yaml.safe_dump_all(helm.render(values)))
    (tmp_path / "weakened.yaml").write_text(yaml.safe_dump(_weakened(helm.render("minimal"))))
    assert grave_findings(tmp_path) == {"weakened.yaml"}


def _weakened(manifests: list[Manifest]) -> Manifest:
    """One with which the scanner must find something, or it would not look."""
    deployment: Manifest = yaml.safe_load(yaml.safe_dump(of_kind(manifests, "Deployment")[0]))
    deployment["spec"]["template"]["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    return deployment
