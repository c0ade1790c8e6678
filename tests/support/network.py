"""Hosts of a test's own, as network namespaces around a router: what befalls a wire there, the kernel does.

Services listen on loopback only until callers can be authenticated. So the hosts' addresses are loopback's, from a
block that each network picks, and the kernel is told to route that block over the hosts' wires (`route_localnet`).
Every packet between two hosts passes two veth pairs and the router, and nobody else can send one. The test itself is
on the network, too.

A namespace lasts as long as something runs in it, and what holds these ends with the test. So nothing is left, however
a test ends.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cache

_numbers = itertools.count(1)

_PROBE = """
ip link add one type veth peer name other
echo 1 > /proc/sys/net/ipv4/conf/one/route_localnet
"""

_JOIN = """
ip link set lo up
echo 1 > /proc/sys/net/ipv4/conf/{device}/route_localnet
ip address add {address}/30 dev {device}
ip link set {device} up
ip route add {subnet}/30 dev {device} table local src {address}
ip route add {block}.0/24 via {gateway} dev {device} onlink table local src {address}
"""
"""The kernel looks into the table `local` first, where all of 127.0.0.0/8 is its own, but for what is more precise."""

_ATTACH = """
echo 1 > /proc/sys/net/ipv4/conf/{port}/route_localnet
ip address add {gateway}/30 dev {port}
ip link set {port} up
"""

_LOSE = """
nft add table ip {table}
nft add chain ip {table} forward '{{ type filter hook forward priority 0; }}'
nft add rule ip {table} forward iifname {port} numgen random mod 100 '<' {percent} drop
nft add rule ip {table} forward oifname {port} numgen random mod 100 '<' {percent} drop
"""


@cache
def why_not() -> str:
    """Why no network can be made here, in words; empty if one can."""
    missing = [program for program in ("ip", "nsenter", "unshare") if shutil.which(program) is None]
    if missing:
        return f"{' and '.join(missing)} not found"
    made = subprocess.run(["unshare", "--net", "sh", "-ec", _PROBE], capture_output=True, text=True, check=False)
    return "" if made.returncode == 0 else made.stderr.strip() or "no namespace can be made"


def can_lose() -> bool:
    """Whether hosts can be made to lose packets."""
    return shutil.which("nft") is not None


class Host:
    """A host on a network. What befalls its wire befalls it while the block lasts."""

    def __init__(self, address: str, port: str, own: Namespace, router: Namespace) -> None:
        self.address = address
        """Its one address on the network."""
        self.enter = own.enter
        """What a command begins with to run there."""
        self._port = port
        self._own = own
        self._router = router

    @asynccontextmanager
    async def unplugged(self) -> AsyncIterator[None]:
        """Its wire is pulled: nothing reaches it or leaves it, and nobody is told."""
        async with self._router.while_it_lasts(f"ip link set {self._port} down", f"ip link set {self._port} up"):
            yield

    @asynccontextmanager
    async def deaf(self) -> AsyncIterator[None]:
        """What is sent to it vanishes; what it sends arrives."""
        async with self._router.while_it_lasts(*_added_and_deleted("route", f"blackhole {self.address}/32")):
            yield

    @asynccontextmanager
    async def mute(self) -> AsyncIterator[None]:
        """What it sends vanishes; what is sent to it arrives."""
        async with self._router.while_it_lasts(*_added_and_deleted("rule", f"from {self.address} blackhole")):
            yield

    @asynccontextmanager
    async def lossy(self, percent: int) -> AsyncIterator[None]:
        """Of a hundred packets to or from it, so many vanish, at random. Takes `nft`."""
        table = f"loss-of-{self._port}"
        begin = _LOSE.format(table=table, port=self._port, percent=percent)
        async with self._router.while_it_lasts(begin, f"nft delete table ip {table}"):
            yield

    async def sever(self) -> None:
        """Reset its connections; new ones can be made."""
        await self._own.run(f"ss --kill --tcp src {self.address}")

    async def connections(self) -> list[str]:
        """The states of its connections, as the host itself sees them (`ESTAB`, `FIN-WAIT-1`)."""
        lines = await self._own.run(f"ss --tcp --numeric --no-header src {self.address}")
        return [line.split()[0] for line in lines.splitlines()]


def _added_and_deleted(what: str, which: str) -> tuple[str, str]:
    return f"ip {what} add {which}", f"ip {what} delete {which}"


class Network:
    """A router, and what is joined to it."""

    def __init__(self, stack: AsyncExitStack, router: Namespace) -> None:
        self._stack = stack
        self._router = router
        self._block = f"127.{random.SystemRandom().randrange(64, 192)}.{random.SystemRandom().randrange(256)}"
        self._ports = itertools.count(1)
        self._name = f"ff{os.getpid()}x{next(_numbers)}"

    async def add_host(self) -> Host:
        """A new host."""
        number = next(self._ports)
        own = await self._stack.enter_async_context(namespace())
        await _run(f"ip link add {self._name} netns {own.pid} type veth peer name h{number} netns {self._router.pid}")
        return await self._join(number, self._name, own)

    async def join(self) -> None:
        """Put the test itself on the network."""
        number = next(self._ports)
        await _run(f"ip link add {self._name} type veth peer name h{number} netns {self._router.pid}")
        self._stack.push_async_callback(_run, f"ip link delete {self._name}")
        await self._join(number, self._name, Namespace(os.getpid(), ()))

    async def _join(self, number: int, device: str, own: Namespace) -> Host:
        port = f"h{number}"
        subnet, gateway, address = (f"{self._block}.{4 * number + last}" for last in range(3))
        words = {"block": self._block, "subnet": subnet, "gateway": gateway, "address": address}
        await self._router.run(_ATTACH.format(port=port, **words))
        await own.run(_JOIN.format(device=device, **words))
        return Host(address, port, own, self._router)


class Namespace:
    """A network namespace by a process in it; `enter` is what a command begins with to run there."""

    def __init__(self, pid: int, enter: Sequence[str]) -> None:
        self.pid = pid
        self.enter = enter

    async def run(self, script: str) -> str:
        return await _run(script, self.enter)

    @asynccontextmanager
    async def while_it_lasts(self, begin: str, end: str) -> AsyncIterator[None]:
        await self.run(begin)
        try:
            yield
        finally:
            await self.run(end)


@asynccontextmanager
async def namespace() -> AsyncIterator[Namespace]:
    """A namespace of its own. What holds it reads from us, so it ends when we do."""
    hold = ["unshare", "--net", "sh", "-c", "echo; exec cat"]
    pipe = asyncio.subprocess.PIPE
    holder = await asyncio.create_subprocess_exec(*hold, stdin=pipe, stdout=pipe, start_new_session=True)
    try:
        assert holder.stdout is not None
        assert await holder.stdout.readline(), "a namespace was made"
        yield Namespace(holder.pid, ("nsenter", f"--net=/proc/{holder.pid}/ns/net"))
    finally:
        with suppress(ProcessLookupError):
            holder.kill()
        await holder.wait()


async def _run(script: str, enter: Sequence[str] = ()) -> str:
    """What a script prints. Raises OSError, with what it said, when it fails."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*enter, "sh", "-ec", script, stdout=pipe, stderr=pipe)
    printed, said = await process.communicate()
    if process.returncode:
        raise OSError(f"{script.strip()}\n{said.decode().strip()}")
    return printed.decode()


@asynccontextmanager
async def network() -> AsyncIterator[Network]:
    """A network with the test on it. Raises OSError where none can be made (`why_not`)."""
    async with AsyncExitStack() as stack:
        router = await stack.enter_async_context(namespace())
        await router.run("echo 1 > /proc/sys/net/ipv4/ip_forward; echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter")
        made = Network(stack, router)
        await made.join()
        yield made
