"""The Helm chart, rendered by the real program, and what is in it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from coordinator.config import CoordinatorConfig
from executor_node.config import ExecutorNodeConfig
from fanfold.cli.agreement import disagreements_of_node, disagreements_of_registry
from fanfold.errors import FieldViolation
from job_registry.config import JobRegistryConfig

CHART = Path(__file__).parent.parent.parent / "helm" / "fanfold"
NAMESPACE = "mesh"
SETTINGS: dict[str, type[BaseModel]] = {
    "coordinator": CoordinatorConfig,
    "job-registry": JobRegistryConfig,
    "executor-node": ExecutorNodeConfig,
}
"""The settings class of each service, by the name of its container."""

VALUE_SETS = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").iterdir())

Manifest = dict[str, Any]


class Helm:
    """The program at `path`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.render = cache(self._render)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What it says."""
        return subprocess.run([self.path, *arguments], capture_output=True, text=True, timeout=60, check=False)

    def refusal(self, values: Mapping[str, Any]) -> str:
        """What it says of values with which it must not render."""
        told = self.run("template", "fanfold", str(CHART), "--namespace", NAMESPACE, "--set-json", *assignments(values))
        assert told.returncode != 0, "these values were taken"
        return told.stderr

    def template(self, *arguments: str, release: str = "fanfold", namespace: str = NAMESPACE) -> list[Manifest]:
        """What the chart comes to."""
        told = self.run("template", release, str(CHART), "--namespace", namespace, *arguments)
        assert told.returncode == 0, told.stderr
        return [manifest for manifest in yaml.safe_load_all(told.stdout) if manifest]

    def _render(self, values: str) -> list[Manifest]:
        """What the chart comes to with one of its sets of values; not to be changed."""
        return self.template("--values", str(CHART / "ci" / f"{values}-values.yaml"))


def assignments(values: Mapping[str, Any]) -> list[str]:
    """Values as an argument of `--set-json`."""
    return [",".join(f"{key}={json.dumps(value)}" for key, value in values.items())]


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    """Those of the kinds."""
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def named(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    """The one of that kind and name."""
    (found,) = (each for each in of_kind(manifests, kind) if each["metadata"]["name"] == name)
    return found


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """The name of whatever has a pod, and the pod's spec."""
    for manifest in manifests:
        spec = manifest.get("spec", {})
        if manifest["kind"] == "Pod":
            yield manifest["metadata"]["name"], spec
        elif "template" in spec:
            yield manifest["metadata"]["name"], spec["template"]["spec"]


def service_pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """The same of the mesh's own services."""
    return ((name, spec) for name, spec in pods(manifests) if spec["containers"][0]["name"] in SETTINGS)


def settings_of(manifests: list[Manifest], name: str) -> dict[str, Any]:
    """The settings that the pods of that name are given."""
    settings: dict[str, Any] = yaml.safe_load(named(manifests, "ConfigMap", name)["data"]["settings.yaml"])
    return settings


def disagreements(manifests: list[Manifest]) -> list[FieldViolation]:
    """What is wrong between the settings of the services, right as each may be."""
    configs = [
        SETTINGS[spec["containers"][0]["name"]].model_validate(settings_of(manifests, name))
        for name, spec in service_pods(manifests)
    ]
    (coordinator,) = (each for each in configs if isinstance(each, CoordinatorConfig))
    found: list[FieldViolation] = []
    for config in configs:
        if isinstance(config, ExecutorNodeConfig):
            found += disagreements_of_node(config, coordinator)
        elif isinstance(config, JobRegistryConfig):
            found += disagreements_of_registry(config, coordinator)
    return found


def grave_findings(folder: Path) -> set[str]:
    """The files in which the scanner finds something grave."""
    trivy = Path(sys.executable).parent / "trivy"
    if not trivy.exists():
        pytest.skip("trivy has no package for this machine")
    quiet = ("--quiet", "--skip-check-update", "--skip-version-check", "--disable-telemetry")
    command = [str(trivy), "config", *quiet, "--format", "json", "--severity", "HIGH,CRITICAL", str(folder)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    results = json.loads(told.stdout)["Results"]
    return {result["Target"] for result in results if result.get("Misconfigurations")}
