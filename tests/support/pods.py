"""Pods of a rendered chart, run on this machine as a cluster would: their files, their users, their limits.

There is no cluster here. What one does with a pod's spec is done by hand: volumes become folders, tokens are signed,
names are resolved by /etc/hosts, and containers are processes in namespaces of their own (pod_container.py), all of
them on one network that nobody else is on, where they can have the ports that the chart gives them.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from support.authority import Authority
from support.charts import NAMESPACE, Manifest, named, pods, service_pods
from support.issuers import TestIssuer
from support.network import namespace

SUPPORT = Path(__file__).parent
PROJECT = str(SUPPORT.parent.parent)
ISSUER = "https://kubernetes.default.svc.cluster.local"
API = "kubernetes.default.svc"
DATABASE = "db.example.com"
"""Where pods find a database that is not the cluster's, if there is one."""
ASSIGNED = 1000670000
"""The user that a platform gives to pods that name none."""
DEADLINE = 100.0
"""Seconds; three services start at once here, on a machine that may have much else to do."""


def why_not() -> str:
    """Why no containers can be had here, in words; empty if they can."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return "the profile of system calls is that of Linux on x86-64"
    if missing := [program for program in ("ip", "nsenter", "unshare", "mount") if shutil.which(program) is None]:
        return f"{' and '.join(missing)} not found"
    tried = ["unshare", "--mount", "--pid", "--uts", "--net", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    made = subprocess.run(tried, capture_output=True, text=True, check=False)
    return made.stderr.strip() if made.returncode else ""


@dataclass(frozen=True)
class Image:
    """What an image brings besides the system: folders of this machine, by where they are there; where programs are."""

    folders: Mapping[str, str]
    programs: str


OURS = Image({path: path for path in (sys.prefix, sys.base_prefix, PROJECT)}, str(Path(sys.executable).parent))
"""This very installation."""


@dataclass
class Cluster:
    """What a cluster has besides pods: somebody who signs tokens, Secrets, a network."""

    manifests: list[Manifest]
    folder: Path
    enter: Sequence[str]
    stack: AsyncExitStack
    secrets: Mapping[str, Mapping[str, bytes]]
    images: Mapping[str, Image]
    issuer: TestIssuer = field(default_factory=TestIssuer)
    containers: dict[str, Container] = field(default_factory=dict)

    async def begin(self) -> None:
        """Start what tells the keys of tokens, and what asks after services."""
        (self.folder / "jwks.json").write_text(json.dumps(self.issuer.jwks()))
        (self.folder / "api.token").write_text("a token for the API server")
        self.authority = Authority(self.folder, "cluster-ca")
        self.authority.pair("cluster", hosts=(API,))
        self._asking = await self._helper("pod_probe.py")
        keys = await self._helper("pod_keys.py", str(self.folder))
        assert keys.stdout is not None
        assert await keys.stdout.readline() == b"ready\n"

    async def _helper(self, *arguments: str) -> asyncio.subprocess.Process:
        program, pipe = str(SUPPORT / arguments[0]), asyncio.subprocess.PIPE
        command = [*self.enter, sys.executable, program, *arguments[1:]]
        helper = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=2**20)
        self.stack.push_async_callback(_ended, helper)
        return helper

    async def bring_database(self, socket: Path) -> None:
        """Have a database that listens at a socket be found at port 5432 of DATABASE."""
        helper = await self._helper("pod_database.py", str(socket))
        assert helper.stdout is not None
        assert await helper.stdout.readline() == b"ready\n"

    async def start_services(self) -> None:
        """Start a pod of each service, and wait until the cluster would send calls there."""
        for name, spec in service_pods(self.manifests):
            self.containers[name] = await self.start(name, spec)
        await self.until_probes("startupProbe", passed=True)
        await self.until_probes("readinessProbe", passed=True)

    async def start(self, name: str, spec: Manifest, *, arguments: list[str] | None = None) -> Container:
        """Start a pod's one container; `arguments` go for its command."""
        (container,) = spec["containers"]
        pod = self.folder / f"{name}-{len(list(self.folder.iterdir()))}"
        volumes = {volume["name"]: self._volume(pod / volume["name"], volume, spec) for volume in spec["volumes"]}
        user = spec["securityContext"].get("runAsUser", ASSIGNED)
        image = self.images.get(container["image"], OURS)
        (pod / "root").mkdir(parents=True)
        wanted = {
            "hostname": f"{name}-0",
            "root": str(pod / "root"),
            "folder": container.get("workingDir", "/"),
            "user": user,
            "command": arguments or [*container["command"], *container.get("args", [])],
            "environment": self._variables(container, f"{name}-0", image),
            "installation": dict(image.folders),
            "hosts": self._hosts(),
            "mounts": [_mount(mount, volumes) for mount in container["volumeMounts"]],
        }
        namespaces = ["unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child"]
        entry = [sys.executable, str(SUPPORT / "pod_container.py"), json.dumps(wanted)]
        with (pod / "out").open("wb") as out, (pod / "err").open("wb") as err:
            process = await asyncio.create_subprocess_exec(*self.enter, *namespaces, *entry, stdout=out, stderr=err)
        self.stack.push_async_callback(_ended, process)
        return Container(name, container, process, pod, volumes)

    async def run(self, name: str, *arguments: str) -> str:
        """What a pod's command prints, or other arguments in its place; it must succeed."""
        (spec,) = (spec for each, spec in pods(self.manifests) if each == name)
        container = await self.start(name, spec, arguments=list(arguments))
        code = await asyncio.wait_for(container.process.wait(), DEADLINE)
        assert code == 0, f"{arguments}\n{container.printed()}\n{container.told()}"
        return container.printed()

    async def probes(self, name: str) -> dict[str, bool]:
        """Which probes pass, of each service's pod."""
        answers = await self._ask([each.probe(name) for each in self.containers.values()])
        return dict(zip(self.containers, answers, strict=True))

    async def until_probes(self, name: str, *, passed: bool, of: Sequence[str] = ()) -> None:
        """Wait until the probes of some services, by default all, come out so."""
        with _telling(self.containers):
            async with asyncio.timeout(DEADLINE):
                while True:
                    answers = await self.probes(name)
                    if all(answers[each] is passed for each in of or self.containers):
                        return
                    ended = [each.name for each in self.containers.values() if each.process.returncode is not None]
                    assert not (passed and ended), f"ended: {ended}"
                    await asyncio.sleep(0.1)

    async def metrics(self, name: str) -> str:
        """What a service's pod tells at its port of metrics."""
        (text,) = await self._ask([{"metrics": self.containers[name].port("metrics")}])
        assert isinstance(text, str)
        return text

    async def _ask(self, probes: list[dict[str, Any]]) -> list[Any]:
        assert self._asking.stdin is not None
        assert self._asking.stdout is not None
        self._asking.stdin.write(json.dumps(probes).encode() + b"\n")
        answers: list[Any] = json.loads(await self._asking.stdout.readline())
        return answers

    def _hosts(self) -> str:
        services = [each["metadata"]["name"] for each in self.manifests if each["kind"] == "Service"]
        names = [API, DATABASE, *(f"{name}.{NAMESPACE}.svc" for name in services)]
        return "127.0.0.1 localhost\n" + "".join(f"127.0.0.1 {name}\n" for name in names)

    def _variables(self, container: Manifest, name: str, image: Image) -> dict[str, str]:
        found = {"PATH": f"{image.programs}:/usr/bin:/bin"}
        known = {"metadata.name": name, "status.podIP": "127.0.0.1"}
        for variable in container["env"]:
            match variable:
                case {"value": str(value)}:
                    for before, text in found.items():
                        value = value.replace(f"$({before})", text)
                    found[variable["name"]] = value
                case {"valueFrom": {"fieldRef": {"fieldPath": path}}}:
                    found[variable["name"]] = known[path]
                case {"valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}:
                    found[variable["name"]] = self.secrets[secret][key].decode()
        return found

    def _volume(self, folder: Path, volume: Manifest, spec: Manifest) -> Path:
        """The folder that a volume is; files come in the way in which the kubelet puts them there."""
        folder.mkdir(parents=True)
        group = spec["securityContext"].get("fsGroup", ASSIGNED)
        files = self._files(volume, spec)
        if files is None:
            os.chown(folder, 0, group)
            folder.chmod(0o2777 if "emptyDir" in volume else 0o2775)
            return folder
        data = folder / "..2026"
        data.mkdir()
        (folder / "..data").symlink_to(data.name)
        for name, content in files.items():
            (data / name).write_bytes(content)
            (data / name).chmod(0o440)
            os.chown(data / name, 0, group)
            (folder / name).symlink_to(f"..data/{name}")
        return folder

    def _files(self, volume: Manifest, spec: Manifest) -> dict[str, bytes] | None:
        """The files in a volume; None if it is one to write to."""
        match volume:
            case {"projected": {"sources": list(sources)}}:
                found = [self._files(source, spec) or {} for source in sources]
                return {name: content for files in found for name, content in files.items()}
            case {"serviceAccountToken": wanted}:
                return {wanted["path"]: self._token(spec["serviceAccountName"], wanted.get("audience")).encode()}
            case {"configMap": {"name": "kube-root-ca.crt"}}:
                return {"ca.crt": self.authority.file.read_bytes()}
            case {"configMap": {"name": name}}:
                data = named(self.manifests, "ConfigMap", name)["data"]
                return {key: text.encode() for key, text in data.items()}
            case {"secret": wanted}:
                secret = self.secrets[wanted.get("secretName") or wanted["name"]]
                items = wanted.get("items") or [{"key": key, "path": key} for key in secret]
                return {item["path"]: secret[item["key"]] for item in items}
        assert "emptyDir" in volume or "persistentVolumeClaim" in volume
        return None

    def _token(self, account: str, audience: str | None) -> str:
        if audience is None:
            return (self.folder / "api.token").read_text()
        return self.issuer.token(iss=ISSUER, aud=audience, sub=f"system:serviceaccount:{NAMESPACE}:{account}")


@dataclass(frozen=True)
class Container:
    """A container that runs or has run."""

    name: str
    spec: Manifest
    process: asyncio.subprocess.Process
    folder: Path
    volumes: Mapping[str, Path]

    def printed(self) -> str:
        """What it has printed."""
        return (self.folder / "out").read_text(errors="replace")

    def told(self) -> str:
        """What it has told on the side, as its log."""
        return (self.folder / "err").read_text(errors="replace")

    def port(self, name: str) -> int:
        """The port of that name."""
        (port,) = (port["containerPort"] for port in self.spec["ports"] if port["name"] == name)
        assert isinstance(port, int)
        return port

    def probe(self, name: str) -> dict[str, Any]:
        """A probe, with its port as a number."""
        probe: dict[str, Any] = json.loads(json.dumps(self.spec[name]))
        if "httpGet" in probe:
            probe["httpGet"]["port"] = self.port(probe["httpGet"]["port"])
        return probe

    def first_process(self) -> psutil.Process:
        """Its process 1."""
        (first,) = psutil.Process(self.process.pid).children()
        return first

    async def ended(self) -> int:
        """Wait until it has; its exit code."""
        return await asyncio.wait_for(self.process.wait(), DEADLINE)


def _mount(mount: Manifest, volumes: Mapping[str, Path]) -> dict[str, Any]:
    source = volumes[mount["name"]]
    if "subPath" in mount:
        source = source / mount["subPath"]
        source.mkdir(exist_ok=True)  # whose group is that of the folder above
        source.chmod(0o2777)
    return {"source": str(source), "target": mount["mountPath"], "read_only": mount.get("readOnly", False)}


@contextmanager
def _telling(containers: Mapping[str, Container]) -> Iterator[None]:
    """Tells, when the block fails, what all containers have printed."""
    try:
        yield
    except (AssertionError, TimeoutError) as error:
        logs = "\n".join(f"--- {each.name}\n{each.told()}" for each in containers.values())
        raise AssertionError(f"{error!r}\n{logs}") from error


async def _ended(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()


@asynccontextmanager
async def cluster(
    manifests: list[Manifest],
    folder: Path,
    secrets: Mapping[str, Mapping[str, bytes]] | None = None,
    images: Mapping[str, Image] | None = None,
) -> AsyncIterator[Cluster]:
    """A cluster with nothing in it yet. What runs there ends with the block.

    Args:
        manifests: what is to run there.
        folder: where what it needs is put.
        secrets: the Secrets, which may come later.
        images: what they bring, by name; others bring this very installation.
    """
    folder.mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(namespace())
        await own.run("ip link set lo up")
        made = Cluster(manifests, folder, own.enter, stack, {} if secrets is None else secrets, images or {})
        await made.begin()
        yield made
