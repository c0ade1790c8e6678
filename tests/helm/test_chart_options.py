"""What can be turned on: certificates, nodes that come and go, what tells how the mesh fares."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from executor_node.agents.files import load_agents
from support.charts import CHART, Helm, named, of_kind, service_pods, settings_of
from support.prometheus import promtool

ROOT = CHART.parent.parent
METRICS = set(re.findall(r"^\| `(fanfold_\w+)`", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE))


def test_the_alerts_are_those_of_the_project(helm: Helm) -> None:
    (rule,) = of_kind(helm.render("monitoring"), "PrometheusRule")
    text = (ROOT / "monitoring" / "alerts.yaml").read_text()
    assert text.count("runbook_url: docs/") > 10
    assert rule["spec"] == yaml.safe_load(
        text.replace("runbook_url: docs/", "runbook_url: https://example.com/fanfold/docs/")
    )
    assert rule["metadata"]["labels"]["release"] == "prometheus"


def test_the_dashboards_are_those_of_the_project(helm: Helm) -> None:
    found = [each for each in of_kind(helm.render("monitoring"), "ConfigMap") if "settings.yaml" not in each["data"]]
    files = {path.name: path.read_text() for path in (ROOT / "monitoring" / "dashboards").iterdir()}
    assert len(files) >= 3
    assert {name: text for each in found for name, text in each["data"].items()} == files
    for each in found:
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert each["metadata"]["annotations"] == {"grafana_folder": "Fanfold"}
        (text,) = each["data"].values()
        assert json.loads(text)["uid"]


def test_prometheus_finds_the_metrics_of_every_service(helm: Helm) -> None:
    manifests = helm.render("monitoring")
    (monitor,) = of_kind(manifests, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = of_kind(manifests, "Service")
    assert all(wanted <= service["metadata"]["labels"].items() for service in services)
    (endpoint,) = monitor["spec"]["endpoints"]
    assert all(endpoint["port"] in [port["name"] for port in service["spec"]["ports"]] for service in services)
    assert endpoint["interval"] == "15s"


def test_nothing_of_that_is_there_unless_asked_for(helm: Helm) -> None:
    kinds = {manifest["kind"] for manifest in helm.render("minimal")}
    assert not kinds & {"ServiceMonitor", "PrometheusRule", "Certificate", "ScaledObject", "HorizontalPodAutoscaler"}


def test_an_autoscaled_pool_is_counted_by_the_autoscaler_alone(helm: Helm) -> None:
    manifests = helm.render("monitoring")
    scalers = of_kind(manifests, "HorizontalPodAutoscaler", "ScaledObject")
    assert sorted(scaler["metadata"]["name"] for scaler in scalers) == ["fanfold-node-burst", "fanfold-node-default"]
    for scaler in scalers:
        target = scaler["spec"]["scaleTargetRef"]
        assert "replicas" not in named(manifests, target["kind"], target["name"])["spec"]
    assert named(helm.render("minimal"), "StatefulSet", "fanfold-node-default")["spec"]["replicas"] == 2


def test_autoscalers_go_by_metrics_that_there_are(helm: Helm) -> None:
    manifests = helm.render("monitoring")
    (hpa,) = of_kind(manifests, "HorizontalPodAutoscaler")
    (metric,) = hpa["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] in METRICS
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "12"}
    (keda,) = of_kind(manifests, "ScaledObject")
    (trigger,) = keda["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    assert set(re.findall(r"fanfold_\w+(?=\{)", query)) <= METRICS
    own, of_all = (f'{{namespace="mesh",pod=~"fanfold-{pods}"}}' for pods in ("node-burst-[0-9]+", "coordinator-.+"))
    assert " ".join(query.split()) == (
        f"(sum(fanfold_node_running_steps{own}) or vector(0)) + ((sum(fanfold_coordinator_steps_waiting{of_all})"
        f" and 2 * sum(fanfold_node_running_steps{own}) >= sum(fanfold_node_concurrency_hint{own})) or vector(0))"
    )
    assert (trigger["metadata"]["threshold"], keda["spec"]["maxReplicaCount"]) == ("8", 50)


async def test_what_waits_counts_for_the_pools_that_are_full(helm: Helm, tmp_path: Path) -> None:
    pools = '{"default": null, "busy": {"autoscaling": {"kind": "keda"}}, "idle": {"autoscaling": {"kind": "keda"}}}'
    scalers = of_kind(helm.template("--set-json", f"executorNodes.pools={pools}"), "ScaledObject")
    queries = {it["metadata"]["name"]: it["spec"]["triggers"][0]["metadata"]["query"] for it in scalers}
    series = {
        'fanfold_coordinator_steps_waiting{namespace="mesh",pod="fanfold-coordinator-a-b"}': 30,
        'fanfold_coordinator_steps_waiting{namespace="other",pod="fanfold-coordinator-a-b"}': 500,
        'fanfold_node_running_steps{namespace="mesh",pod="fanfold-node-busy-0"}': 9,
        'fanfold_node_concurrency_hint{namespace="mesh",pod="fanfold-node-busy-0"}': 16,
        'fanfold_node_running_steps{namespace="mesh",pod="fanfold-node-idle-0"}': 2,
        'fanfold_node_concurrency_hint{namespace="mesh",pod="fanfold-node-idle-0"}': 16,
    }
    wanted = {"fanfold-node-busy": 39, "fanfold-node-idle": 2}
    asked = [
        {"expr": queries[name], "eval_time": "1m", "exp_samples": [{"value": value}]} for name, value in wanted.items()
    ]
    given = [{"series": name, "values": f"{value}x5"} for name, value in series.items()]
    test = {"tests": [{"interval": "1m", "input_series": given, "promql_expr_test": asked}]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    code, said = await promtool("test", "rules", str(tmp_path / "test.yaml"))
    assert code == 0, said


@pytest.mark.contract("C40")
def test_each_service_has_a_certificate_of_its_own_and_coordinators_are_known_by_theirs(helm: Helm) -> None:
    manifests = helm.render("mtls")
    certificates = {each["metadata"]["name"]: each["spec"] for each in of_kind(manifests, "Certificate")}
    assert certificates.keys() == {"fanfold-coordinator", "fanfold-job-registry", "fanfold-executor-node"}
    identities = [uri for spec in certificates.values() for uri in spec["uris"]]
    for name, spec in service_pods(manifests):
        settings = settings_of(manifests, name)
        (rule,) = settings["auth"]["certificates"]
        assert [rule["match"]] == certificates["fanfold-coordinator"]["uris"]
        assert identities.count(rule["match"]) == 1
        shown = next(volume["secret"]["secretName"] for volume in spec["volumes"] if volume["name"] == "tls")
        (own,) = (each for each in certificates.values() if each["secretName"] == shown)
        assert settings_of(manifests, "fanfold-coordinator")["client"]["server_name"] in own["dnsNames"]
        assert f"{name}.mesh.svc" in own["dnsNames"]


def test_the_cluster_asks_after_services_in_a_way_that_they_answer(helm: Helm) -> None:
    for values, probe in (("minimal", "grpc"), ("mtls", "httpGet")):  # its probes of gRPC know no TLS
        for _, spec in service_pods(helm.render(values)):
            container = spec["containers"][0]
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            for name in ("startupProbe", "livenessProbe", "readinessProbe"):
                asked: dict[str, Any] = container[name][probe]
                assert asked["port"] in (ports.values() if probe == "grpc" else ports)


def test_the_agents_of_all_pools_are_agents(helm: Helm, tmp_path: Path) -> None:
    for values, name, agent in (
        ("pools", "fanfold-node-coding", "reviewer"),
        ("everything", "agents-node-coding", "echo"),
    ):
        folder = tmp_path / values
        folder.mkdir()
        for file, text in named(helm.render(values), "ConfigMap", f"{name}-agents")["data"].items():
            (folder / file).write_text(text)
        assert list(load_agents(folder, builtin=False)) == [agent]


def test_a_workspace_is_cloned_before_the_node_starts(helm: Helm) -> None:
    spec = named(helm.render("pools"), "StatefulSet", "fanfold-node-coding")["spec"]["template"]["spec"]
    (clone,) = spec["initContainers"]
    variables = {each["name"]: each.get("value") for each in clone["env"]}
    assert (variables["REPOSITORY"], variables["REVISION"]) == ("https://git.example.com/team/project.git", "v1.2.3")
    (node,) = spec["containers"]
    assert clone["image"] == node["image"] == "registry.example.com/fanfold-coding-agents:7"
    # Steps may read all that their node sees, so it sees no credentials, and what clones sees nothing else.
    assert [mount["name"] for mount in clone["volumeMounts"]] == ["workspace", "git", "scratch", "scratch"]
    assert "git" not in [mount["name"] for mount in node["volumeMounts"]]
    assert secret_names(spec) == {"git-credentials", "models"}


def test_in_a_cluster_of_ipv6_alone_addresses_have_brackets(helm: Helm) -> None:
    manifests = helm.template("--set-json", 'listen="[::]"')
    settings = settings_of(manifests, "fanfold-coordinator")
    assert (settings["listen"], settings["metrics_listen"]) == ("[::]:7400", "[::]:7480")
    coordinator = next(spec for name, spec in service_pods(manifests) if name == "fanfold-coordinator")
    variables = {each["name"]: each.get("value") for each in coordinator["containers"][0]["env"]}
    assert variables["FANFOLD_COORDINATOR__ADVERTISE"] == "[$(POD_IP)]:7400"


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder to which everybody can come."""
    with TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_cloning_brings_the_wanted_revision_whatever_is_there(helm: Helm, shared_folder: Path) -> None:
    origin, workspace = shared_folder / "origin", shared_folder / "workspace"
    workspace.mkdir()
    git(shared_folder, "init", "--quiet", str(origin))
    for number in (1, 2):
        (origin / "file").write_text(f"{number}\n")
        git(origin, "add", "file")
        git(origin, "-c", "user.name=x", "-c", "user.email=x@example.com", "commit", "--quiet", "--message", "a change")
        git(origin, "tag", f"v{number}")
    spec = named(helm.render("pools"), "StatefulSet", "fanfold-node-coding")["spec"]["template"]["spec"]
    (clone,) = spec["initContainers"]
    command = [*clone["command"], *(text.replace("/workspace", str(workspace)) for text in clone["args"])]
    if os.geteuid() == 0:  # as the volume is root's, and the pod is not
        subprocess.run(["chown", "--recursive", "10001", str(origin)], check=True)
        os.chown(workspace, 0, 10001)
        workspace.chmod(0o2777)
        command = ["setpriv", "--reuid=10001", "--regid=10001", "--clear-groups", "--no-new-privs", *command]
    file = workspace / "repository" / "file"
    assert settings_of(helm.render("pools"), "fanfold-node-coding")["workspace"] == "/workspace/repository"
    for revision, content in (("v1", "1\n"), ("v2", "2\n"), ("v2", "2\n"), ("v1", "1\n")):
        environment = {"PATH": os.environ["PATH"], "HOME": str(workspace), "REPOSITORY": f"file://{origin}"}
        subprocess.run(command, cwd=workspace, env=environment | {"REVISION": revision}, check=True)
        assert file.read_text() == content
        file.write_text("what a step has left")


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True)


def test_no_secret_is_in_anything_that_is_rendered(helm: Helm) -> None:
    manifests = helm.render("everything")
    assert of_kind(manifests, "Secret") == []
    names = set().union(*(secret_names(spec) for _, spec in service_pods(manifests)))
    assert names == {"coordinator-tls", "registry-tls", "node-tls", "fanfold-tokens", "fanfold-db", "collector"}


def secret_names(part: Any) -> set[str]:
    """The Secrets that a part of a pod refers to."""
    match part:
        case {"secretName": str(name)} | {"secret": {"name": str(name)}} | {"secretKeyRef": {"name": str(name)}}:
            return {name}
        case dict():
            return set().union(*map(secret_names, part.values()))
        case list():
            return set().union(*map(secret_names, part))
        case _:
            return set()
