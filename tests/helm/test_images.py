"""The Dockerfile's steps, done here, give what the chart's pods need, and nothing that builds."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from support.charts import Helm, grave_findings, service_pods
from support.images import ROOT, built, stages
from support.pods import Image, cluster, why_not

SERVICES = ("coordinator", "executor-node", "job-registry")


def test_the_scanner_finds_nothing_grave_in_it(tmp_path: Path) -> None:
    text = (ROOT / "Dockerfile").read_text()
    (tmp_path / "Dockerfile").write_text(text)
    (tmp_path / "Dockerfile.root").write_text(text.replace("USER 10001:10001", "USER 0"))
    assert grave_findings(tmp_path) == {"Dockerfile.root"}


def test_there_is_a_target_for_each_image_of_the_chart(helm: Helm) -> None:
    for _, spec in service_pods(helm.render("minimal")):
        (container,) = spec["containers"]
        name = container["name"]
        assert container["image"] == f"fanfold-{name}:0.1.0"
        target = stages()[name]
        assert target.given("ENTRYPOINT") == [f'["fanfold", "serve", "{name}"]']
        assert container["command"][:3] == ["fanfold", "serve", name]
        users = [*stages()[target.base].given("USER"), *target.given("USER")]
        assert users[-1] == "{runAsUser}:{runAsGroup}".format(**spec["securityContext"])


def test_all_of_it_is_pinned() -> None:
    told = stages()
    (base,) = {base for stage in told.values() if (base := stage.base) not in told}
    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm@sha256:[0-9a-f]{64}", base)
    installing = {stage.name for stage in told.values() for text in stage.given("RUN") if "pip --python" in text}
    assert installing == {"build", "build-node"}
    assert told["build-node"].base == "build"
    assert told["build"].variables() == {"PIP_CONSTRAINT": "/opt/source/constraints.txt"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = (ROOT / "constraints.txt").read_text()
    for builder in project["build-system"]["requires"]:
        assert re.search(rf"^{re.split('[<>=~!]', builder)[0]}==", pinned, re.MULTILINE)


def test_what_is_not_copied_is_not_in_the_context() -> None:
    sources = {
        word
        for stage in stages().values()
        for text in stage.given("COPY")
        if "--from" not in text
        for word in text.split()[:-1]
    }
    ignored = (ROOT / ".dockerignore").read_text()
    assert set(re.findall(r"^!(\S+)", ignored, re.MULTILINE)) == sources
    assert re.search(r"^\*$", ignored, re.MULTILINE)


@pytest.mark.process
@pytest.mark.timeout(900)  # two installations from nothing
@pytest.mark.skipif(bool(why_not()), reason=f"no namespaces: {why_not()}")
async def test_what_its_steps_install_is_a_mesh(helm: Helm, tmp_path: Path) -> None:
    told = stages()
    roots = {"build": built(told["build"], None, tmp_path / "build")}
    inherited = told["build"].variables()
    roots["build-node"] = built(told["build-node"], roots["build"], tmp_path / "build-node", inherited)
    images = {}
    for service in SERVICES:
        (copied,) = told[service].given("COPY")
        stage = re.fullmatch(r"--from=(\S+) /opt/fanfold /opt/fanfold", copied)
        assert stage is not None
        installed = roots[stage[1]] / "opt" / "fanfold"
        assert not list(installed.glob("bin/pip*"))
        folders = {"/opt/fanfold": str(installed), sys.base_prefix: sys.base_prefix}
        images[f"fanfold-{service}:0.1.0"] = Image(folders, "/opt/fanfold/bin")
    async with cluster(helm.render("minimal"), tmp_path / "cluster", images=images) as running:
        await running.start_services()
        assert re.search(r"^files +list +ok ", await running.run("fanfold-test"), re.MULTILINE)
