"""A receiver of traces that speaks OTLP over HTTP as a collector does, and what it was sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message

from support.mesh import until


@dataclass(frozen=True, slots=True)
class SentSpan:
    """A span as it was sent."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    attributes: Mapping[str, Any]
    error: bool
    message: str
    links: tuple[tuple[str, str], ...]
    """The traces and spans that it is linked to."""
    events: tuple[str, ...]
    start: int
    end: int

    @property
    def error_type(self) -> str:
        """What kind of error it ended with; empty if with none."""
        return str(self.attributes.get("error.type", ""))


@dataclass(slots=True)
class Receiver:
    """What was received. One that is `mute` takes requests and never answers; else it answers with `status`."""

    endpoint: str = ""
    mute: bool = False
    status: int = 200
    spans: list[SentSpan] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def named(self, name: str) -> list[SentSpan]:
        """The spans of this name, in the order in which they began."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.start)

    def children(self, parent: SentSpan) -> list[SentSpan]:
        """The spans right below one, in the order in which they began."""
        return sorted((span for span in self.spans if span.parent_id == parent.span_id), key=lambda span: span.start)

    async def until_named(self, name: str, count: int = 1) -> list[SentSpan]:
        """The spans of this name, once there are so many."""
        await until(lambda: len(self.named(name)) >= count, f"{count} spans {name!r}, of {self}")
        return self.named(name)

    def __str__(self) -> str:
        return str(sorted(f"{span.service}: {span.name}" for span in self.spans))


@asynccontextmanager
async def otlp_receiver() -> AsyncIterator[Receiver]:
    """A receiver on a free port while the block lasts."""
    receiver = Receiver()
    connections: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_serve(receiver, reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    receiver.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield receiver
    finally:
        server.close()
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _serve(receiver: Receiver, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await reader.readexactly(int(headers["content-length"]))
            assert first == "POST /v1/traces HTTP/1.1"
            assert headers["content-type"] == "application/x-protobuf"
            receiver.headers.append(headers)
            if receiver.mute:
                await asyncio.Event().wait()
            if receiver.status == 200:
                receiver.bodies.append(body)
                receiver.spans += spans_of(ExportTraceServiceRequest.FromString(body))
            answer = ExportTraceServiceResponse().SerializeToString()
            head = f"HTTP/1.1 {receiver.status} x\r\ncontent-type: application/x-protobuf\r\n"
            writer.write(f"{head}content-length: {len(answer)}\r\n\r\n".encode() + answer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def spans_of(request: ExportTraceServiceRequest) -> list[SentSpan]:
    """The spans of a request."""
    return [
        _span_of(span, _attributes_of(resource.resource.attributes)["service.name"])
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _span_of(span: Message, service: str) -> SentSpan:
    return SentSpan(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=span.kind,
        attributes=_attributes_of(span.attributes),
        error=span.status.code == 2,
        message=span.status.message,
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        events=tuple(event.name for event in span.events),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
    )


def _attributes_of(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
