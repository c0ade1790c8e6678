"""`/metrics`, `/healthz` and `/readyz` over HTTP.

Answered by the event loop itself, so that a service whose loop hangs does not pass for alive.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable
from http import HTTPStatus
from types import TracebackType
from typing import Self

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from fanfold.errors import FailedPrecondition
from fanfold.rpc.addresses import LOOPBACK, Address, address_in_use, bindable

_REQUEST_SECONDS = 5.0
_MAX_REQUEST_BYTES = 16 * 1024
_MOST_CONNECTIONS = 128
_PLAIN = "text/plain; charset=utf-8"


class Exposition:
    """Tells metrics and health to a scraper: `async with Exposition(registry, is_ready=...) as exposition: ...`.

    A connection is for one request, and is cut when that and its answer take longer than some seconds, or when it is
    the oldest of too many. `/healthz` answers 200 while the loop runs; `/readyz` 200 or 503 as `is_ready()` says.

    Raises (on entering):
        FailedPrecondition: `host` is not loopback, and not to be `anywhere`; or the port cannot be had.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        is_ready: Callable[[], bool],
        host: str = LOOPBACK,
        port: int = 0,
        anywhere: bool = False,
    ) -> None:
        self.address = Address(bindable(host, anywhere=anywhere), port)
        self._registry = registry
        self._is_ready = is_ready
        self._connections: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        host, port = self.address.host, self.address.port
        try:
            self._server = await asyncio.start_server(self._connected, host, port, limit=_MAX_REQUEST_BYTES)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise address_in_use(self.address) from error
            raise FailedPrecondition(f"cannot listen on {self.address}: {error.strerror}") from error
        self.address = Address(host, self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= _MOST_CONNECTIONS:
            oldest = next(iter(self._connections))
            oldest.cancel()
            del self._connections[oldest]
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections[task] = None
        task.add_done_callback(lambda task: self._connections.pop(task, None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request; then the connection is closed."""
        writer.transport.set_write_buffer_limits(0)  # so that what is drained is gone
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._response(head))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            writer.transport.abort()  # whoever it was did not want an answer, and closing would wait for it to be read
        except BaseException:
            writer.transport.abort()
            raise
        else:
            writer.close()

    async def _response(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        status, kind, body = HTTPStatus.OK, _PLAIN, b"ok\n"
        match method, path:
            case b"GET" | b"HEAD", b"/metrics":
                kind, body = CONTENT_TYPE_LATEST, await self._metrics()
            case b"GET" | b"HEAD", b"/healthz":
                pass
            case b"GET" | b"HEAD", b"/readyz":
                if not self._is_ready():
                    status, body = HTTPStatus.SERVICE_UNAVAILABLE, b"not ready\n"
            case b"GET" | b"HEAD", _:
                status, body = HTTPStatus.NOT_FOUND, b"try /metrics, /healthz or /readyz\n"
            case _:
                status, body = HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD\n"
        lines = (
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Connection: close",
        )
        return "\r\n".join((*lines, "", "")).encode() + (b"" if method == b"HEAD" else body)

    async def _metrics(self) -> bytes:
        """The metrics as they are now: looked at in the loop, in which they change, and put into words beside it."""
        return await asyncio.to_thread(generate_latest, _Collected(self._registry.collect()))


class _Collected(Collector):
    """What was collected at one moment."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families
