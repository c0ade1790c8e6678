"""How nodes are found, and who is told of them: static, DNS, announcements and watches (C10, C41)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from structlog.testing import CapturingLogger

import executor_node.servicer
from coordinator.placement import nodes as placement
from fanfold import Mesh
from fanfold.clients.coordinator import CoordinatorClient
from fanfold.errors import InvalidArgument
from fanfold.model.node import NodesChanged, NodeState, NodeView
from fanfold.rpc.channels import open_channel
from fanfold.rpc.serving import Serving
from fanfold.rpc.status import from_rpc_error
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1 import executor_node_pb2
from fanfold.v1.coordinator_pb2_grpc import CoordinatorStub
from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeStub
from support.mesh import coordinator_alone, running_mesh, until, until_ready
from support.strange import StrangeNode, serving_node

pytestmark = pytest.mark.process

STEP = {"task_id": "t", "agent": "noop", "description": "d", "prompt": "x"}


async def ready(mesh: Mesh) -> list[NodeView]:
    return [view for view in await mesh.nodes() if view.state is NodeState.READY]


class Resolver:
    """Stands for DNS: `localhost` resolves to what the test says, or not at all; the rest as ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: list[str] = ["127.0.0.1"]
        self.asked = 0
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    async def asked_again(self) -> None:
        """Wait until an answer that was given after this call has been acted on."""
        before = self.asked
        await until(lambda: self.asked >= before + 3, "names are looked up again")

    def _look_up(self, host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if host != "localhost":
            return self._real(host, port, *args, **kwargs)
        self.asked += 1
        if not self.addresses:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [entry for address in self.addresses for entry in self._real(address, port, *args, **kwargs)]


async def test_a_dns_name_finds_a_node() -> None:
    async with serving_node(StrangeNode()) as address:
        port = address.rpartition(":")[2]
        sources = {"dns": [f"localhost:{port}"]}
        async with coordinator_alone(nodes=sources) as coordinator, Mesh(coordinator.address) as mesh:
            await until_ready(mesh, 1)
            assert [view.address for view in await ready(mesh)] == [f"127.0.0.1:{port}"]
            assert (await mesh.execute(STEP)).success


async def test_a_name_that_stops_resolving_keeps_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    dns = Resolver(monkeypatch)
    node = StrangeNode()
    async with AsyncExitStack() as stack:
        async with serving_node(node) as address:
            port = int(address.rpartition(":")[2])
            sources = {"dns": [f"localhost:{port}"], "dns_interval": 0.02, "redial_delay": 0.05}
            coordinator = await stack.enter_async_context(coordinator_alone(nodes=sources))
            mesh = await stack.enter_async_context(Mesh(coordinator.address))
            await until_ready(mesh, 1)
            dns.addresses = []
            await dns.asked_again()
            assert (await mesh.execute(STEP)).success
            assert node.links == 1, "it was dialled once, and kept"
        await until_ready(mesh, 0)
        await dns.asked_again()
        assert [view.state for view in await mesh.nodes()] == [NodeState.LOST], "it may come back before DNS does"
        await stack.enter_async_context(serving_node(node, port))
        await until_ready(mesh, 1)
        assert (await mesh.execute(STEP)).success


async def test_addresses_of_a_name_come_and_go_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    dns = Resolver(monkeypatch)
    dns.addresses = ["127.0.0.1", "127.0.0.9"]  # nobody serves at the latter
    async with serving_node(StrangeNode()) as address:
        port = address.rpartition(":")[2]
        sources = {"dns": [f"localhost:{port}"], "dns_interval": 0.02, "redial_delay": 0.05}
        async with coordinator_alone(nodes=sources) as coordinator, Mesh(coordinator.address) as mesh:
            await until_ready(mesh, 1)
            assert sorted(view.address for view in await mesh.nodes()) == [f"127.0.0.1:{port}", f"127.0.0.9:{port}"]
            dns.addresses = ["127.0.0.1"]
            async with asyncio.timeout(20):
                while len(views := await mesh.nodes()) != 1:
                    await asyncio.sleep(0.01)
            assert [view.state for view in views] == [NodeState.READY]


@pytest.mark.contract("C42")
async def test_why_a_node_is_never_linked_is_logged_and_not_at_every_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    log = CapturingLogger()
    monkeypatch.setattr(placement, "_log", log)  # whatever level other tests have had set
    node = StrangeNode(name="same")
    async with serving_node(node) as first, serving_node(node) as second:
        sources = {"static": [first, second], "redial_delay": 0.05}
        async with coordinator_alone(nodes=sources) as serving, Mesh(serving.address) as mesh:
            await until_ready(mesh, 1)
            (linked,) = [view.address for view in await ready(mesh)]
            await until(lambda: node.links >= 6, "the other one has been dialled again and again")
    (other,) = {first, second} - {linked}
    told = [(call.kwargs["address"], call.kwargs["why"]) for call in log.calls if call.args == ("node not linked",)]
    assert told.count((other, f"node 'same' is already linked at {linked}")) == 1


async def test_a_static_address_that_is_none_is_refused_by_its_place() -> None:
    for sources in ({"static": ["127.0.0.1:1", "nonsense"]}, {"dns": ["localhost:1", "nonsense"]}):
        with pytest.raises(InvalidArgument) as caught:
            async with coordinator_alone(nodes=sources):
                pass
        assert caught.value.violations[0].field == f"nodes.{next(iter(sources))}[1]"


@pytest.fixture
async def coordinator() -> AsyncIterator[Serving]:
    async with coordinator_alone(nodes={"redial_delay": 0.05}) as serving:
        yield serving


async def announce(coordinator: Serving, addresses: Iterable[str]) -> InvalidArgument:
    """What announcing these addresses one after the other on one stream is answered."""
    async with open_channel(coordinator.address) as channel:
        call = CoordinatorStub(channel).AnnounceNode()
        try:
            for address in addresses:
                await call.write(pb.AnnounceNodeRequest(name="n", address=address))
                answer = await asyncio.wait_for(call.read(), 10)
                assert isinstance(answer, pb.AnnounceNodeResponse)
                assert answer.repeat_within.ToMilliseconds() == 10_000
        except grpc.aio.AioRpcError as raised:
            error = from_rpc_error(raised)
            assert isinstance(error, InvalidArgument)
            return error
    raise AssertionError("it was accepted")


@pytest.mark.contract("C41")
@pytest.mark.parametrize("address", ["", "nonsense", "host", "host:0", "host:65536", "unix:/tmp/socket", "[::x]:1"])
async def test_an_announcement_of_what_is_no_address_is_refused_by_field(coordinator: Serving, address: str) -> None:
    error = await announce(coordinator, [address])
    assert [violation.field for violation in error.violations] == ["address"]
    async with Mesh(coordinator.address) as mesh:
        assert await mesh.nodes() == []


@pytest.mark.contract("C41")
@pytest.mark.parametrize("later", ["127.0.0.1:2", "nonsense"])
async def test_the_address_stays_the_same_within_an_announcement(coordinator: Serving, later: str) -> None:
    error = await announce(coordinator, ["127.0.0.1:1", "127.0.0.1:1", later])
    assert [violation.field for violation in error.violations] == ["address"]
    async with Mesh(coordinator.address) as mesh, asyncio.timeout(20):
        while await mesh.nodes():  # its announcement is over, so it is forgotten
            await asyncio.sleep(0.01)


async def test_who_watches_nodes_hears_of_one_that_comes_and_by_its_name_when_it_goes(coordinator: Serving) -> None:
    async def next_change(changes: AsyncIterator[NodesChanged]) -> NodesChanged:
        return await asyncio.wait_for(anext(changes), 20)

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(CoordinatorClient(coordinator.address))
        channel = await stack.enter_async_context(open_channel(coordinator.address))
        changes = await stack.enter_async_context(aclosing(client.watch_nodes()))
        assert await next_change(changes) == NodesChanged()
        async with serving_node(StrangeNode(name="not-its-address")) as address:
            call = CoordinatorStub(channel).AnnounceNode()
            await call.write(pb.AnnounceNodeRequest(name="not-its-address", address=address))
            await call.read()
            seen: list[NodeView] = []
            while not seen or seen[-1].state is not NodeState.READY:
                seen += (await next_change(changes)).nodes
            assert {view.address for view in seen} == {address}
            assert seen[-1].node.name == "not-its-address"
            call.cancel()
        forgotten: tuple[str, ...] = ()
        while not forgotten:
            forgotten = (await next_change(changes)).forgotten
        assert forgotten == ("not-its-address",)


async def test_who_watches_a_node_is_told_once_at_first_and_then_of_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_node.servicer, "STATUS_INTERVAL", 0.02)
    async with running_mesh(tmp_path) as running, open_channel(running.nodes[0].address) as channel:
        call = ExecutorNodeStub(channel).WatchNode(executor_node_pb2.WatchNodeRequest())

        async def told() -> Any:
            response = await asyncio.wait_for(call.read(), 10)
            assert isinstance(response, executor_node_pb2.WatchNodeResponse)
            return response.node

        first = await told()
        assert first.name == "node-1"
        assert first.status.running_steps == 0
        news = asyncio.create_task(told())
        await asyncio.wait({news}, timeout=0.5)  # many times the interval
        assert not news.done(), "nothing has changed"
        step = asyncio.ensure_future(running.mesh.execute({**STEP, "agent": "sleep", "prompt": "600"}))
        assert (await news).status.running_steps == 1
        step.cancel()
        assert (await told()).status.running_steps == 0
        call.cancel()
