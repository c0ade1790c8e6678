"""Networks of a test's own: what befalls their wires is seen by real connections, and nothing of them is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from subprocess import DEVNULL, PIPE

import psutil
import pytest

from fanfold.background import background
from fanfold.model.node import NodeState
from faults.storms import stormy_mesh
from faults.wires import HostWire
from support.mesh import until
from support.network import Host, can_lose, network, why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(bool(why_not()), reason=f"no network namespaces: {why_not()}"),
]

TESTS = Path(__file__).parent.parent
PORT = 7000
OVER_THERE = """
import socket, sys, threading
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print(flush=True)
connection, _ = server.accept()
def hear():
    for line in connection.makefile():
        print(line, end="", flush=True)
threading.Thread(target=hear, daemon=True).start()
for line in sys.stdin:
    connection.sendall(line.encode())
"""


class End:
    """One end of a connection: what it says goes to the other one, and what it hears is noted."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard: list[str] = []
        self.was_reset = False
        self._reader = reader
        self._writer = writer

    def say(self, word: str) -> None:
        self._writer.write(f"{word}\n".encode())

    async def listen(self) -> None:
        try:
            while line := await self._reader.readline():
                self.heard.append(line.decode().strip())
        except ConnectionResetError:
            self.was_reset = True


@dataclass(frozen=True, slots=True)
class Talk:
    """A connection over a host's wire: its end here, and the one over there, which is heard through a pipe."""

    host: Host
    here: End
    there: End


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    async with network() as hosts:
        host = await hosts.add_host()
        command = [*host.enter, sys.executable, "-c", OVER_THERE, host.address, str(PORT)]
        over_there = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
        try:
            assert over_there.stdin is not None
            assert over_there.stdout is not None
            await over_there.stdout.readline()
            reader, writer = await asyncio.open_connection(host.address, PORT)
            here, there = End(reader, writer), End(over_there.stdout, over_there.stdin)
            async with background(here.listen(), there.listen()):
                yield Talk(host, here, there)
            writer.transport.abort()
        finally:
            over_there.kill()
            await over_there.wait()


async def test_hosts_have_loopback_addresses_and_are_reached_over_their_wires(talk: Talk) -> None:
    assert ip_address(talk.host.address).is_loopback
    talk.here.say("hello")
    await until(lambda: talk.there.heard == ["hello"], "it is heard over there")
    talk.there.say("hello yourself")
    await until(lambda: talk.here.heard == ["hello yourself"], "it is heard here")


@pytest.mark.parametrize(
    ("trouble", "hears_here", "hears_there"), [("unplugged", [], []), ("deaf", ["b"], []), ("mute", [], ["a"])]
)
async def test_a_dead_wire_passes_nothing_on_and_tells_nobody(
    talk: Talk, trouble: str, hears_here: list[str], hears_there: list[str]
) -> None:
    async with getattr(talk.host, trouble)():
        talk.here.say("a")
        talk.there.say("b")
        await asyncio.sleep(0.5)
        assert talk.here.heard == hears_here
        assert talk.there.heard == hears_there
        assert await talk.host.connections() == ["ESTAB"]
    await until(lambda: (talk.here.heard, talk.there.heard) == (["b"], ["a"]), "it comes when the wire is back")


@pytest.mark.skipif(not can_lose(), reason="nft is not installed")
async def test_a_lossy_wire_is_slow_and_loses_nothing_in_the_end(talk: Talk) -> None:
    words = [str(number) for number in range(30)]
    began = time.monotonic()
    async with talk.host.lossy(20):
        for number, word in enumerate(words):
            talk.here.say(word)
            await until(partial(_has_heard, talk.there, number + 1), "it is heard over there", 60)
    assert talk.there.heard == words
    assert time.monotonic() - began > 0.4, "some packets were sent again, which TCP does after 0.2 s"


async def test_a_severed_connection_is_over_and_another_can_be_made(talk: Talk) -> None:
    await talk.host.sever()
    assert await talk.host.connections() == []
    await until(lambda: talk.here.was_reset, "the other end is told")
    _, writer = await asyncio.open_connection(talk.host.address, PORT)
    writer.close()


def _has_heard(end: End, count: int) -> bool:
    return len(end.heard) == count


@pytest.mark.contract("F18", "C42")
async def test_a_half_open_link_is_given_up_by_its_silence_and_made_anew(tmp_path: Path) -> None:
    async with stormy_mesh(tmp_path) as stormy:
        wire = stormy.wires[0]
        assert isinstance(wire, HostWire)

        async def state() -> NodeState:
            (view,) = [view for view in await stormy.client.nodes() if view.address == wire.address]
            return view.state

        assert await wire.host.connections() == ["ESTAB"]
        async with wire.host.unplugged():
            async with asyncio.timeout(10):
                while await state() is not NodeState.LOST:
                    await asyncio.sleep(0.05)
            assert await wire.host.connections() == ["ESTAB"], "nobody has told the node"
        async with asyncio.timeout(10):
            while await state() is not NodeState.READY:
                await asyncio.sleep(0.05)


HOLD = """
import asyncio, json, os, socket
from support.network import network
async def hold():
    async with network() as hosts:
        host = await hosts.add_host()
        inside = await asyncio.create_subprocess_exec(*host.enter, "readlink", "/proc/self/ns/net", stdout=-1)
        (device,) = [name for _, name in socket.if_nameindex() if name.startswith(f"ff{os.getpid()}x")]
        space = (await inside.stdout.read()).decode().strip()
        print(json.dumps({"device": device, "address": host.address, "space": space}), flush=True)
        await asyncio.sleep(600)
asyncio.run(hold())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_nothing_of_a_network_is_left_however_its_test_ends(number: signal.Signals) -> None:
    command = [sys.executable, "-c", HOLD]
    holder = await asyncio.create_subprocess_exec(*command, cwd=TESTS, stdout=PIPE, stderr=DEVNULL)
    assert holder.stdout is not None
    made = json.loads(await holder.stdout.readline())
    assert made["device"] in _devices()
    assert _processes_in(made["space"])
    holder.send_signal(number)
    await holder.wait()
    await until(lambda: made["device"] not in _devices(), "the device is gone")
    await until(lambda: not _processes_in(made["space"]), "the namespace is gone")
    routes = Path("/proc/net/fib_trie").read_text("ascii")
    assert "127.0.0.0/8" in routes
    assert made["address"].rpartition(".")[0] not in routes


def _devices() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def _processes_in(space: str) -> list[int]:
    found = []
    for pid in psutil.pids():
        with suppress(OSError):
            if os.readlink(f"/proc/{pid}/ns/net") == space:
                found.append(pid)
    return found
