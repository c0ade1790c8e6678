"""A gRPC server with everything around its services, from start to drain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import grpc.aio
import structlog
from prometheus_client import CollectorRegistry

from fanfold.errors import FailedPrecondition, FanfoldError
from fanfold.rpc.addresses import LOOPBACK, Address, address_in_use
from fanfold.rpc.attendants import ATTENDANTS, Health, add_attendants
from fanfold.rpc.auth.guard import Authenticator, Guard
from fanfold.rpc.auth.policy import Policy
from fanfold.rpc.auth.settings import NO_TLS, TlsSettings
from fanfold.rpc.call import Call
from fanfold.rpc.interceptor import Answer, CallInterceptor
from fanfold.rpc.layers import ErrorsAnswered, Observed
from fanfold.rpc.logs import configure_logs_if_nobody_has
from fanfold.rpc.metrics import RpcMetrics
from fanfold.rpc.refusing import hear_out
from fanfold.rpc.running import RunningCalls
from fanfold.rpc.tls import Door, doors_of

MAX_REQUEST_BYTES = 16 * 1024 * 1024
"""A larger message is answered RESOURCE_EXHAUSTED by gRPC itself, unless a service takes larger ones."""

CLEAN_UP_SECONDS = 10.0
"""How long a cancelled call may take to clean up before the server stops regardless."""

LINGER_SECONDS = 0.3
"""How long a server that drains refuses calls after its last answer. gRPC ends those that come as it is taken down, and
their callers would not know that they were not heard."""

DEVELOPMENT_MODE = "development mode: every program on this machine is let in, as anonymous, and nobody else"
"""What the log says at start where callers cannot be known (C40)."""

_LAST_ANSWERS_SECONDS = 1.0
_WATCH_SECONDS = 0.5
_FOR_EVER_SECONDS = 30 * 24 * 3600.0

_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_send_message_length", -1),  # the client's limit is the one that counts
    ("grpc.max_concurrent_streams", 4096),
    ("grpc.so_reuseport", 0),  # a second server on the port is a mistake to be told
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Service:
    """A servicer, the full name of its service, the generated function that adds it to a server, and who may call it.

    `unattended` names methods whose calls do not end by themselves, so that draining does not wait for them.
    """

    name: str
    servicer: object
    add_to_server: Callable[[Any, grpc.aio.Server], None]
    policy: Policy
    unattended: frozenset[str] = frozenset()


class GrpcServer:
    """Serves `services`, with health and reflection beside them: `async with GrpcServer([...]) as server: ...`.

    Port 0 takes a free one; `address` says which. Leaving the block stops at once; `drain` before it to stop gently.
    Without an `authenticator` it is in development mode.

    Raises (here, and on entering):
        InvalidArgument: the TLS settings make no sense.
        FailedPrecondition: `host` is not loopback, in development mode or without TLS; or the port cannot be had.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        host: str = LOOPBACK,
        port: int = 0,
        registry: CollectorRegistry | None = None,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        authenticator: Authenticator | None = None,
        tls: TlsSettings = NO_TLS,
    ) -> None:
        self._doors = doors_of(Address(host, port), tls, open_to_all=authenticator is None)
        self._services = services
        self._max_request_bytes = max_request_bytes
        self._guard = Guard({service.name: service.policy for service in services}, authenticator)
        self._metrics = RpcMetrics(registry or CollectorRegistry(), self._guard.refused)
        self._health = Health([service.name for service in services])
        self._running = RunningCalls(
            attendants=ATTENDANTS,
            unattended={f"/{service.name}/{method}" for service in services for method in service.unattended},
        )
        self._server: grpc.aio.Server | None = None
        self._watching: asyncio.Task[None] | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self._doors[0].address

    @property
    def mutual_address(self) -> Address | None:
        """Where it listens to those alone who have a certificate, if that is elsewhere."""
        return self._doors[1].address if len(self._doors) > 1 else None

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self.address.port

    @property
    def draining(self) -> bool:
        """Whether it refuses new calls."""
        return self._running.draining

    async def _serve(self, call: Call, answer: Answer, requests: Any) -> Any:
        """What every call goes through, outermost first."""
        with Observed(call, self._metrics):
            async with ErrorsAnswered(call):
                try:
                    await self._guard.admit(call)
                except FanfoldError:
                    await hear_out(call)
                    raise
                with self._running.admitted(call):
                    return await answer(requests, call.context)

    async def __aenter__(self) -> Self:
        configure_logs_if_nobody_has()
        await self._health.serve()
        self._server = await self._started()
        self._watching = asyncio.create_task(self._watch())
        log.info("listening", address=str(self.address))
        if self._guard.is_open:
            log.warning(DEVELOPMENT_MODE)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain(0)

    async def begin_drain(self) -> None:
        """Tell NOT_SERVING and refuse new calls as UNAVAILABLE, while running ones go on (C43). Idempotent."""
        self._running.draining = True
        await self._health.stop()

    async def drain(self, grace: float) -> None:
        """Stop: running calls get `grace` seconds to end, then they are cancelled and told UNAVAILABLE. Idempotent.

        It returns when the calls have cleaned up, at most CLEAN_UP_SECONDS after the grace.
        """
        await self.begin_drain()
        if not await self._running.wait(grace):
            log.warning("calls are cut short", methods=self._running.methods(), grace=grace)
        elif grace:
            await self._running.rest(LINGER_SECONDS)
        if not await self._running.cut_short(CLEAN_UP_SECONDS):
            log.error("calls do not end", methods=self._running.methods(), waited=CLEAN_UP_SECONDS)
        if self._watching is not None:
            await _cancelled(self._watching)
        if self._server is not None:
            await self._server.stop(_LAST_ANSWERS_SECONDS)
            self._server = None
        await _cancelled(*self._retiring)

    async def _started(self) -> grpc.aio.Server:
        options = [("grpc.max_receive_message_length", self._max_request_bytes), *_OPTIONS]
        server = grpc.aio.server(interceptors=[CallInterceptor(self._serve)], options=options)
        for service in self._services:
            service.add_to_server(service.servicer, server)
        add_attendants(server, self._health)
        try:
            self._doors = [replace(door, address=_bound(server, door)) for door in self._doors]
        except FailedPrecondition:
            await server.stop(None)
            raise
        # In an empty context: calls must not inherit log fields or identities of whoever starts the server.
        await asyncio.create_task(server.start(), context=Context())
        return server

    async def _watch(self) -> None:
        """End the calls of who may not go on, and replace the server within gRPC when it stops by itself.

        grpc.aio (1.85) does so for good at a request whose path is no UTF-8, which anyone can send. Calls that run then
        go on to their end where they are.
        """
        while self._server is not None:
            await asyncio.sleep(_WATCH_SECONDS)
            self._running.dismiss(self._guard.dismissal_of)
            if _is_running(self._server):
                continue
            try:
                stopped, self._server = self._server, await self._started()
            except FailedPrecondition as error:
                log.error("gRPC stopped serving and cannot serve again", reason=error.message)  # noqa: TRY400
                continue
            log.error("gRPC stopped serving by itself and serves again")
            retiring = asyncio.create_task(stopped.stop(_FOR_EVER_SECONDS))
            self._retiring.add(retiring)
            retiring.add_done_callback(self._retiring.discard)


async def _cancelled(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _is_running(server: grpc.aio.Server) -> bool:
    running: bool = server._server.is_running()  # type: ignore[attr-defined]  # nothing public tells
    return running


def _bound(server: grpc.aio.Server, door: Door) -> Address:
    address = door.address
    try:
        if door.credentials is None:
            port = server.add_insecure_port(str(address))
        else:
            port = server.add_secure_port(str(address), door.credentials)
    except RuntimeError:
        port = 0
    if not port:
        raise address_in_use(address)
    return Address(address.host, port)
