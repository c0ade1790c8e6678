"""A real server on a free port with an executor node that does what a test tells it to, and a client of it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc.aio
from prometheus_client import CollectorRegistry

from executor_node.policy import policy_of
from fanfold.errors import FanfoldError
from fanfold.rpc.channels import open_channel
from fanfold.rpc.server import GrpcServer, Service
from fanfold.rpc.status import from_rpc_error
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.v1.executor_node_pb2_grpc import (
    ExecutorNodeServicer,
    ExecutorNodeStub,
    add_ExecutorNodeServicer_to_server,
)

if TYPE_CHECKING:
    from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeAsyncStub

SERVICE = "fanfold.v1.ExecutorNode"
DESCRIBE = f"/{SERVICE}/DescribeNode"
WATCH = f"/{SERVICE}/WatchNode"
LINK = f"/{SERVICE}/Link"

Context = grpc.aio.ServicerContext[Any, Any]


async def _answer() -> None:
    pass


@dataclass
class FakeNode(ExecutorNodeServicer):
    """Awaits `on_describe` in DescribeNode, `on_watch` between two messages of WatchNode and `on_end` at its end.

    Link echoes. It has no ExecuteStep.
    """

    on_describe: Callable[[], Awaitable[None]] = _answer
    on_watch: Callable[[], Awaitable[None]] = _answer
    described: pb.DescribeNodeResponse = field(default_factory=pb.DescribeNodeResponse)
    watched: pb.WatchNodeResponse = field(default_factory=pb.WatchNodeResponse)
    on_end: Callable[[], Awaitable[None]] = _answer
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def DescribeNode(  # noqa: N802
        self, request: pb.DescribeNodeRequest, context: Context
    ) -> pb.DescribeNodeResponse:
        self.entered.set()
        try:
            await self.on_describe()
        finally:
            self.ended.set()
        return self.described

    async def WatchNode(  # noqa: N802
        self, request: pb.WatchNodeRequest, context: Context
    ) -> AsyncIterator[pb.WatchNodeResponse]:
        self.entered.set()
        try:
            while True:
                yield self.watched
                await self.on_watch()
        finally:
            await self.on_end()
            self.ended.set()

    async def Link(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.LinkRequest], context: Context
    ) -> AsyncIterator[pb.LinkResponse]:
        self.entered.set()
        try:
            async for _ in request_iterator:
                yield pb.LinkResponse()
        finally:
            self.ended.set()


@dataclass
class Up:
    """What a test works with."""

    node: FakeNode
    server: GrpcServer
    registry: CollectorRegistry
    channel: grpc.aio.Channel
    stub: ExecutorNodeAsyncStub

    async def describe(self) -> pb.DescribeNodeResponse:
        return await self.stub.DescribeNode(pb.DescribeNodeRequest())

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@asynccontextmanager
async def serving_node(*, unattended: frozenset[str] = frozenset()) -> AsyncIterator[Up]:
    node, registry = FakeNode(), CollectorRegistry()  # type: ignore[abstract]
    service = Service(
        SERVICE, node, add_ExecutorNodeServicer_to_server, policy_of(direct_callers=True), unattended=unattended
    )
    async with GrpcServer([service], registry=registry) as server, open_channel(str(server.address)) as channel:
        yield Up(node, server, registry, channel, ExecutorNodeStub(channel))


def raw_unary(channel: grpc.aio.Channel, method: str) -> Any:
    """A method that takes and gives bytes, one message each."""
    return channel.unary_unary(method, request_serializer=bytes)


def raw_stream(channel: grpc.aio.Channel, method: str) -> Any:
    """A method that takes and gives bytes, streams of messages."""
    return channel.stream_stream(method, request_serializer=bytes)


async def error_of(call: Awaitable[object]) -> FanfoldError:
    """The domain error that a call ends with."""
    try:
        async with asyncio.timeout(10):
            await call
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    raise AssertionError("the call succeeded")


async def until(condition: Callable[[], object], seconds: float = 5) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def send_path(port: int, path: bytes) -> None:
    """Make a gRPC call to a path that no client library would send, and wait for whatever the server answers."""
    headers = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": path,
        b":authority": b"test",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
    }
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    settings, call = _frame(4, 0, 0, b""), _frame(1, 5, 1, block)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + call)
    async with asyncio.timeout(10):
        while b"grpc-status" not in await reader.read(65536):
            pass
    writer.close()
    await writer.wait_closed()


def _text(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload
