"""What docs/deploy.md shows is right, as far as a machine without a cluster can tell.

Commands of helm and kubectl are run against a cluster that does not answer: they get that far only if all their words
are right. What they name is looked up in what the chart renders.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from executor_node.agents.files import load_agents
from support.charts import CHART, Helm, Manifest, disagreements, named, of_kind, pods, service_pods, settings_of
from support.images import ROOT, stages

PAGE = (ROOT / "docs" / "deploy.md").read_text()
NO_CLUSTER = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:1"}}],
    "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
    "users": [{"name": "none"}],
    "current-context": "none",
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines()]


def words_of(program: str) -> list[list[str]]:
    """The words of each command of a program, also of one within another."""
    found = []
    for command in COMMANDS:
        within = re.search(r"\$\((.*)\)", command)
        words = shlex.split(within[1] if within else re.sub(r" (&|> \S+)$", "", command))
        if words[0] == program:
            found.append(words)
    return found


@pytest.fixture
def production(tmp_path: Path) -> Path:
    """All that the page says for production, in one file."""
    values: dict[str, Any] = {}
    for block in blocks("yaml"):
        values = merged(values, yaml.safe_load(block))
    file = tmp_path / "production.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = {key: merged(below[key], value) for key, value in above.items() if isinstance(below.get(key), dict)}
    return below | above | both


@pytest.fixture
def mesh(helm: Helm, production: Path) -> list[Manifest]:
    """What the chart renders with that."""
    return helm.template("--namespace", "fanfold", "--values", str(production))


def test_every_command_is_of_a_program_that_is_looked_at() -> None:
    programs = ("docker", "kind", "helm", "kubectl", "fanfold")
    assert sum(len(words_of(program)) for program in programs) == len(COMMANDS) > 20
    assert len(blocks("sh")[0].splitlines()) == 10  # as it promises


def test_helm_and_kubectl_know_all_of_their_words(pytestconfig: pytest.Config, production: Path) -> None:
    own = Path(pytestconfig.getoption("--chart"))
    (production.parent / "kubeconfig").write_text(yaml.safe_dump(NO_CLUSTER))
    (production.parent / "helm").symlink_to(ROOT / "helm")
    for file in ("db.password", "db-ca.pem"):
        (production.parent / file).touch()
    environment = {**os.environ, "KUBECONFIG": str(production.parent / "kubeconfig")}
    for words in (*words_of("helm"), *words_of("kubectl")):
        program = (own / words[0]).absolute()
        found = str(program) if program.exists() else shutil.which(words[0])
        assert found is not None, words[0]
        told = subprocess.run(
            [found, *words[1:]],
            cwd=production.parent,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert re.search("connection refused|was refused", told.stderr), f"{words}: {told.stderr}"
        assert "unknown" not in told.stderr


def test_kubectl_asks_for_what_there_is(mesh: list[Manifest], helm: Helm) -> None:
    minimal = helm.render("minimal")
    asked = [" ".join(words) for words in words_of("kubectl")]
    (forwarded,) = re.findall(r"port-forward service/(\S+) (\d+)", "\n".join(asked))
    assert int(forwarded[1]) in [port["port"] for port in named(minimal, "Service", forwarded[0])["spec"]["ports"]]
    (account,) = re.findall(r"create token (\S+) --audience fanfold", "\n".join(asked))
    assert named(minimal, "ServiceAccount", account)
    assert f"system:serviceaccount:mesh:{account}" in str(settings_of(minimal, "fanfold-coordinator")["auth"]["jwt"])
    (claims,) = re.findall(r"delete persistentvolumeclaim (.*)", "\n".join(asked))
    assert sorted(claims.split()) == sorted(
        each["metadata"]["name"] for each in of_kind(minimal, "PersistentVolumeClaim")
    )
    backed_up = re.findall(r"exec deployment/(\S+) -- fanfold backup (\S+) /var/lib/fanfold/", "\n".join(asked))
    assert {
        name: (settings_of(minimal, name).get("journal") or settings_of(minimal, name)["store"])["path"]
        for name, _ in backed_up
    } == dict(backed_up)
    assert len(backed_up) == 2
    (secret,) = re.findall(r"get secret (\S+)", "\n".join(asked))
    assert secret in [each["spec"]["secretName"] for each in of_kind(mesh, "Certificate")]
    made = dict(re.findall(r"create secret generic (\S+) --from-file=([^=]+)=", "\n".join(asked)))
    (database,) = (
        volume["projected"]["sources"]
        for name, spec in service_pods(mesh)
        if name == "fanfold-coordinator"
        for volume in spec["volumes"]
        if volume["name"] == "database"
    )
    assert made == {source["secret"]["name"]: source["secret"]["items"][0]["key"] for source in database}


def test_images_are_built_loaded_and_used_by_the_same_names(helm: Helm) -> None:
    built = dict(re.findall(r"docker build --target (\S+) --tag (\S+) \.", PAGE))
    (loaded,) = (words[words.index("fanfold") + 1 :] for words in words_of("kind") if words[1] == "load")
    used = {container["image"] for _, spec in pods(helm.render("minimal")) for container in spec["containers"]}
    assert built.keys() <= stages().keys()
    assert set(built.values()) == set(loaded) == used
    (further,) = blocks("dockerfile")
    assert further.splitlines()[0] == f"FROM {built['executor-node']}"
    assert further.splitlines()[-1] == f"USER {stages()['executor-node'].given('USER')[-1]}"


def test_the_agents_that_it_shows_are_agents(mesh: list[Manifest], tmp_path: Path) -> None:
    for name, text in named(mesh, "ConfigMap", "fanfold-node-coding-agents")["data"].items():
        (tmp_path / name).write_text(text)
    assert list(load_agents(tmp_path, builtin=False)) == ["reviewer"]


def test_its_settings_go_with_one_another(mesh: list[Manifest]) -> None:
    assert disagreements(mesh) == []


def test_what_it_says_of_certificates_is_so(mesh: list[Manifest]) -> None:
    (coordinator,) = (each for each in of_kind(mesh, "Certificate") if each["metadata"]["name"].endswith("coordinator"))
    assert "fanfold.mesh" in coordinator["spec"]["dnsNames"]
    assert "`fanfold.mesh`" in PAGE
    (shown,) = (words for words in words_of("fanfold") if "--ca" in words)
    assert shown[shown.index("--server") + 1].removesuffix(":7400") in coordinator["spec"]["dnsNames"]
    assert f"`{coordinator['spec']['uris'][0]}`" in PAGE


def test_every_set_value_and_every_link_is_right(helm: Helm, production: Path) -> None:
    for words in words_of("helm"):
        for option, value in pairwise(words):
            if option == "--set":
                assert helm.template("--values", str(production), "--set", value)
    for link in re.findall(r"\]\((?!http)([^)#]+)", PAGE):
        assert (ROOT / "docs" / link).resolve().exists()
    assert CHART.exists()
