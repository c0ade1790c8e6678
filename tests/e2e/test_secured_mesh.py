"""A mesh of real processes that know their callers by tokens and speak TLS, asked from the shell (C40)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from support.authority import Authority
from support.command import FANFOLD, until

pytestmark = [pytest.mark.process, pytest.mark.contract("C40", "F26")]

DEADLINE = 60.0
SECRET = "in the environment of every service"

# Tells the environments of the agent's process and of all that it descends from, as far as they can be read.
LOOK_FOR_SECRETS = """
env; tr '\\0' '\\n' < /proc/self/environ; pid=$$
while [ "$pid" -gt 1 ]; do
  tr '\\0' '\\n' < /proc/$pid/environ 2>&1 || true
  echo "looked at $pid $(tr '\\0' ' ' < /proc/$pid/cmdline)"
  pid=$(cut -d' ' -f4 /proc/$pid/stat)
done
"""


@dataclass
class Mesh:
    """A coordinator, a node and a registry."""

    folder: Path
    address: str
    ca: Path
    metrics: list[str]
    """Where the services tell their metrics."""

    def fanfold(self, *arguments: str | Path, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command against it, to its end."""
        return fanfold(*arguments, text=text, FANFOLD_SERVER=self.address, **environment)

    def as_(self, who: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command with somebody's token."""
        return self.fanfold("--token-file", self.folder / who, "--ca", self.ca, *arguments, text=text)


def fanfold(*arguments: str | Path, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*FANFOLD, *arguments],
        input=text,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


@contextmanager
def service(kind: str, folder: Path, settings: dict[str, object]) -> Iterator[dict[str, str]]:
    """The addresses of a service of its own process, killed at the end."""
    file, log = folder / f"{kind}.yaml", folder / f"{kind}.log"
    file.write_text(yaml.safe_dump(settings))
    command = [*FANFOLD, "serve", kind, "--config", str(file), "--print-ready"]
    environment = {**os.environ, "FANFOLD_TOKEN": SECRET, "PYTHONPATH": os.pathsep.join(sys.path)}
    with log.open("w") as stderr:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        yield json.loads(line)
    finally:
        below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.kill()
        process.wait()
        for child in below:
            if child.is_running():
                child.kill()


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    folder = tmp_path_factory.mktemp("mesh")
    authority = Authority(folder)
    server = authority.pair("server")
    for name, role in {
        "alice": "caller",
        "bob": "caller",
        "watcher": "observer",
        "c1": "coordinator",
        "n1": "node",
    }.items():
        made = fanfold("token", "create", "--principal", name, "--role", role, "--file", folder / "tokens.yaml")
        assert made.returncode == 0, made.stderr
        (folder / name).write_text(made.stdout)
    common: dict[str, object] = {
        "listen": "127.0.0.1:0",
        "metrics_listen": "127.0.0.1:0",
        "log_level": "debug",
        "log_format": "json",
        "auth": {"tokens": str(folder / "tokens.yaml")},
        "tls": {"certificate": str(server.certificate), "key": str(server.key)},
    }

    def calling_as(name: str) -> dict[str, object]:
        return {"client": {"token_file": str(folder / name), "ca": str(authority.file)}}

    (folder / "workspace").mkdir()
    with ExitStack() as stack:
        journal = {"journal": {"path": str(folder / "journal.db")}}
        coordinator = stack.enter_context(service("coordinator", folder, common | calling_as("c1") | journal))
        address = coordinator["address"]
        node = {
            "announce_to": [address],
            "workspace": str(folder / "workspace"),
            "agents": {"shell": True},
            "name": "node-1",
        }
        others = [
            stack.enter_context(service("executor-node", folder, common | calling_as("n1") | node)),
            stack.enter_context(service("job-registry", folder, common)),
        ]
        up = Mesh(folder, address, authority.file, [each["metrics"] for each in (coordinator, *others)])
        until(lambda: "ready" in up.as_("watcher", "nodes").stdout, "the node is ready")
        yield up


def test_agents_are_run_for_those_who_are_known(mesh: Mesh) -> None:
    steps = [{"task_id": "a", "agent": "shell", "description": "d", "prompt": "echo hello"}]
    done = mesh.as_("alice", "parallel", "-", "--json", text=json.dumps(steps))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outcomes"][0]["output"].strip() == "hello"

    by_environment = mesh.fanfold(
        "nodes", FANFOLD_TOKEN=(mesh.folder / "alice").read_text().strip(), FANFOLD_CA=str(mesh.ca)
    )
    assert "node-1" in by_environment.stdout


def test_others_are_told_what_is_missing_and_no_more(mesh: Mesh) -> None:
    nobody = mesh.fanfold("--ca", mesh.ca, "nodes")
    assert nobody.returncode == 1
    assert "--token-file or FANFOLD_TOKEN" in nobody.stderr

    made_up = mesh.fanfold("--ca", mesh.ca, "nodes", FANFOLD_TOKEN="fft_0123456789ab_made-up")
    assert (made_up.returncode, made_up.stderr) == (1, nobody.stderr)

    plaintext = mesh.fanfold("nodes")
    assert plaintext.returncode == 3

    watcher = mesh.as_(
        "watcher", "parallel", "-", text='[{"task_id":"a","agent":"noop","description":"d","prompt":"p"}]'
    )
    assert watcher.returncode == 1
    assert "watcher may not call Run: it is for caller, not for observer" in watcher.stderr


def test_a_run_is_its_owners(mesh: Mesh) -> None:
    steps = [{"task_id": "a", "agent": "shell", "description": "d", "prompt": "exit 3"}]
    done = mesh.as_("alice", "parallel", "-", "--workflow-id", "audit", text=json.dumps(steps))
    assert done.returncode == 1

    def listed(who: str) -> list[str]:
        return [run["owner"] for run in json.loads(mesh.as_(who, "runs", "list", "--json").stdout)["runs"]]

    assert listed("alice") == listed("watcher") == ["alice"]
    assert listed("bob") == []


def test_no_secret_reaches_what_agents_start_nor_a_log_nor_a_metric(mesh: Mesh) -> None:
    steps = [{"task_id": "a", "agent": "shell", "description": "d", "prompt": LOOK_FOR_SECRETS}]
    done = mesh.as_("alice", "parallel", "-", "--json", text=json.dumps(steps))
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)["outcomes"][0]["output"]
    looked_at = re.findall(r"^looked at \d+ (.*)", output, re.MULTILINE)
    assert sum("executor_node.supervisor" in command for command in looked_at) == 2  # the launcher and the supervisor
    assert SECRET not in output
    assert "FANFOLD" not in output

    metrics = [urllib.request.urlopen(f"http://{at}/metrics", timeout=10).read().decode() for at in mesh.metrics]
    assert all("fanfold_rpc_handled_total" in text and "alice" not in text for text in metrics)
    told = "".join([*(file.read_text() for file in mesh.folder.glob("*.log")), output, *metrics])
    assert '"principal": "alice"' in told
    tokens = [(mesh.folder / name).read_text().strip() for name in ("alice", "bob", "watcher", "c1", "n1")]
    hashes = [token["sha256"] for token in yaml.safe_load((mesh.folder / "tokens.yaml").read_text())["tokens"]]
    for secret in (SECRET, *(token.split("_", 2)[2] for token in tokens), *hashes, "made-up"):
        assert secret not in told


def test_a_token_is_good_until_it_is_revoked(mesh: Mesh) -> None:
    file = mesh.folder / "tokens.yaml"
    made = fanfold(
        "token", "create", "--principal", "carol", "--role", "caller", "--expires", "1h", "--json", "--file", file
    )
    token = json.loads(made.stdout)
    (mesh.folder / "carol").write_text(token["token"])
    until(lambda: mesh.as_("carol", "nodes").returncode == 0, "carol is known")
    listed = fanfold("token", "list", "--file", file)
    assert "carol" in listed.stdout
    assert token["token"].split("_", 2)[2] not in listed.stdout
    assert fanfold("token", "revoke", token["id"], "--file", file).returncode == 0
    until(lambda: mesh.as_("carol", "nodes").returncode == 1, "carol is known no more")
    again = fanfold("token", "revoke", token["id"], "--file", file)
    assert (again.returncode, "there is no token" in again.stderr) == (1, True)


def test_services_say_that_they_are_in_development_mode_only_when_they_are(mesh: Mesh) -> None:
    assert all("development mode" not in file.read_text() for file in mesh.folder.glob("*.log"))
