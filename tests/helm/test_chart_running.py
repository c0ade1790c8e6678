"""The containers that the chart renders are really started, under the limits that it gives them, and are a mesh."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from coordinator.scripts.engine.lockdown import SECCOMP
from support.charts import CHART, NAMESPACE, Helm
from support.command import with_argument
from support.mesh import until
from support.pods import ASSIGNED, DATABASE, DEADLINE, Cluster, cluster, why_not
from support.postgres import GUARDED, Server

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(bool(why_not()), reason=f"no containers: {why_not()}"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]

COORDINATOR, REGISTRY, NODE = "fanfold-coordinator", "fanfold-job-registry", "fanfold-node-default"
AGENTS = {
    "waits.md": """\
---
name: waits
description: Goes on when a file of that name is there.
kind: command
command: [sh, -c, 'read name; until test -e "/workspace/$name"; do sleep 0.1; done; echo went on']
---
""",
    "strays.md": """\
---
name: strays
description: Leaves a process behind, in a session of its own.
kind: command
command: [sh, -c, 'read name; setsid sleep "$name" & echo gone']
---
""",
    "looks.md": """\
---
name: looks
description: Tells what it may do.
kind: command
command:
- sh
- -c
- |
  id -u; grep -E "CapEff|NoNewPrivs|^Seccomp:" /proc/self/status
  touch /usr/x 2>&1; unshare --user true 2>&1; touch /home/fanfold/x && echo home
---
""",
}
SCRIPT = """\
const found = await parallel([() => agent("*", {agent: "list"}), () => agent("none", {agent: "read"})])
return found.map(each => each === null)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """What the chart renders by default, with agents, up."""
    long = "executorNodes.pools.default.config.drain_grace=120"  # a busy machine may be slow to let a step go on
    manifests = helm.template("--set-json", f"executorNodes.pools.default.agents={json.dumps(AGENTS)}", "--set", long)
    async with cluster(manifests, tmp_path_factory.mktemp("cluster")) as running:
        await running.start_services()
        yield running


def step(agent: str, prompt: str) -> str:
    """A command for a shell that has the mesh run one step."""
    asked = json.dumps([{"task_id": "it", "agent": agent, "description": "a test", "prompt": prompt}])
    return f"echo '{asked}' | fanfold parallel - --json"


DETACHED = (
    step("list", "*").replace("--json", "--detach")
    + f"; export FANFOLD_REGISTRY={REGISTRY}.{NAMESPACE}.svc:7401; fanfold jobs wait 1; fanfold jobs list"
)


async def outcome(mesh: Cluster, agent: str, prompt: str) -> dict[str, Any]:
    """What comes of one step that the caller's pod asks for."""
    printed = json.loads(await mesh.run("fanfold-test", "sh", "-euc", step(agent, prompt)))
    found: dict[str, Any] = printed["outcomes"][0]
    return found


async def test_the_test_of_the_release_passes(mesh: Cluster) -> None:
    assert re.search(r"^files +list +ok ", await mesh.run("fanfold-test"), re.MULTILINE)


@pytest.mark.contract("C44")
async def test_all_probes_pass_and_each_service_tells_its_metrics(mesh: Cluster) -> None:
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert set((await mesh.probes(probe)).values()) == {True}
    for name in (COORDINATOR, REGISTRY, NODE):
        assert "fanfold_build_info{" in await mesh.metrics(name)


async def test_steps_have_the_limits_of_the_pod(mesh: Cluster) -> None:
    output = (await outcome(mesh, "looks", "?"))["output"]
    assert output.splitlines()[0] == "10001"
    assert re.findall(r"(\w+):\s+(\S+)", output)[:3] == [
        ("CapEff", "0000000000000000"),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
    ]
    assert "Read-only file system" in output
    assert "unshare failed: Operation not permitted" in output  # by the profile of system calls
    assert output.splitlines()[-1] == "home"


@pytest.mark.contract("C29", "F1")
async def test_the_supervisor_ends_what_a_step_leaves_behind(mesh: Cluster) -> None:
    marker = "86311"
    assert (await outcome(mesh, "strays", marker))["success"]
    await until(lambda: not with_argument(marker), "the stray process is gone")


@pytest.mark.contract("C25")
async def test_scripts_run_locked_down(mesh: Cluster) -> None:
    meta = json.dumps({"name": "audit", "description": "a test"})
    run = f"printf %s '{SCRIPT}' | fanfold run - --meta '{meta}' --json"
    assert json.loads(await mesh.run("fanfold-test", "sh", "-euc", run))["value"] == [False, True]
    log = mesh.containers[COORDINATOR].told()
    (ready,) = (line for line in log.splitlines() if "script engine ready" in line)
    assert SECCOMP in ready


@pytest.mark.contract("C31")
async def test_a_detached_run_is_a_job_of_the_registry(mesh: Cluster) -> None:
    assert "completed" in await mesh.run("fanfold-test", "sh", "-euc", DETACHED)


@pytest.mark.contract("C40")
async def test_who_shows_no_token_is_refused(mesh: Cluster) -> None:
    run = f"! env -u FANFOLD_TOKEN_FILE fanfold nodes --server {COORDINATOR}.{NAMESPACE}.svc:7400 2>&1"
    assert "who calls is not known here" in await mesh.run("fanfold-test", "sh", "-uc", run)


@pytest.mark.contract("C43")
async def test_a_node_drains_when_its_pod_is_taken_away(mesh: Cluster) -> None:
    node = mesh.containers[NODE]
    running = asyncio.create_task(outcome(mesh, "waits", "go"))
    async with asyncio.timeout(DEADLINE):
        while "fanfold_node_running_steps 1.0" not in await mesh.metrics(NODE):
            assert not running.done()
    node.first_process().send_signal(signal.SIGTERM)
    await mesh.until_probes("readinessProbe", passed=False, of=[NODE])
    assert node.process.returncode is None
    (node.volumes["workspace"] / "go").touch()
    assert (await running)["output"] == "went on\n"
    assert await node.ended() == 0


@pytest.mark.contract("C43")
async def test_the_other_services_end_when_their_pods_are_taken_away(mesh: Cluster) -> None:
    for name in (COORDINATOR, REGISTRY):
        mesh.containers[name].first_process().send_signal(signal.SIGTERM)
    for name in (COORDINATOR, REGISTRY):
        assert await mesh.containers[name].ended() == 0, mesh.containers[name].told()


@pytest.mark.contract("C40")
async def test_as_in_production_with_certificates_a_database_and_a_user_that_the_platform_gives(
    helm: Helm, tmp_path: Path, postgres: Server
) -> None:
    sets = [word for name in ("postgres-ha", "mtls") for word in ("--values", f"{CHART}/ci/{name}-values.yaml")]
    with postgres.named_database() as name, postgres.guarded(name) as password:
        secrets = {"fanfold-db": {"password": password.encode()}, "fanfold-db-ca": {"ca.crt": b"not asked for here"}}
        url = f"postgresql://{GUARDED}@{DATABASE}/{name}?sslmode=disable"  # as sockets of files have no TLS
        manifests = helm.template(*sets, "--set", f"auth.jwt=null,user=null,postgres.url={url}")
        async with cluster(manifests, tmp_path, secrets) as running:
            secrets |= certificates(running)
            await running.bring_database(postgres.socket)
            await running.start_services()
            assert re.search(r"^files +list +ok ", await running.run("fanfold-test"), re.MULTILINE)
            assert "completed" in await running.run("fanfold-test", "sh", "-euc", DETACHED)
            assert running.containers[COORDINATOR].first_process().uids().real == ASSIGNED
        kept = postgres.execute("SELECT nspname FROM pg_namespace WHERE nspname ~ '^fanfold'", name)
        assert len(kept) == 2  # runs, and jobs


def certificates(running: Cluster) -> dict[str, dict[str, bytes]]:
    """What cert-manager would make of the chart's Certificates."""
    found = {}
    for manifest in running.manifests:
        if manifest["kind"] == "Certificate":
            spec = manifest["spec"]
            pair = running.authority.pair(
                spec["secretName"], uris=tuple(spec["uris"]), hosts=tuple(spec["dnsNames"]), subject=None
            )
            found[spec["secretName"]] = {
                "tls.crt": pair.certificate.read_bytes(),
                "tls.key": pair.key.read_bytes(),
                "ca.crt": running.authority.file.read_bytes(),
            }
    return found
