"""One service as a process or as part of one: its gRPC server and its exposition, up and down together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry

from fanfold.errors import InvalidArgument
from fanfold.rpc.addresses import Address, parse_address
from fanfold.rpc.auth.known import known_callers
from fanfold.rpc.auth.settings import NO_CLIENT, AuthSettings, ClientSettings, TlsSettings
from fanfold.rpc.exposition import Exposition
from fanfold.rpc.metrics import ServiceCollector
from fanfold.rpc.server import MAX_REQUEST_BYTES, GrpcServer, Service

Finish = Callable[[float], Awaitable[None]]
"""Finishes what a service has under way, within a grace in seconds, so that the calls that carry it end."""

HandOver = Callable[[], Awaitable[None]]
"""Gives what a service holds to its like, at once."""

LAST_CALLS_SECONDS = 2.0

BESIDE_STEP_BYTES = 2**20
"""More than a message has beside its step, so that a step that is a little too large is refused by name."""


class Served(Protocol):
    """What the configurations of all services say about how they are served."""

    @property
    def listen(self) -> str:
        """Where to serve gRPC, as host:port."""
        ...

    @property
    def metrics_listen(self) -> str:
        """Where to serve metrics and health, as host:port."""
        ...

    @property
    def auth(self) -> AuthSettings:
        """How callers are known."""
        ...

    @property
    def tls(self) -> TlsSettings:
        """What is shown to them."""
        ...


@dataclass(frozen=True, slots=True)
class Serving:
    """A service that is up."""

    server: GrpcServer
    metrics: Address
    finish: Finish | None = None
    hand_over: HandOver | None = None

    @property
    def address(self) -> str:
        """Where it serves gRPC, as host:port."""
        return str(self.server.address)

    async def drain(self, grace: float) -> None:
        """Take no new calls and finish what is under way within `grace` seconds; what is left is cut short (C43)."""
        await self.server.begin_drain()
        if self.hand_over is not None:
            await self.hand_over()
        if self.finish is not None:
            await self.finish(grace)
            grace = LAST_CALLS_SECONDS
        await self.server.drain(grace)


@asynccontextmanager
async def serving(
    services: Sequence[Service],
    config: Served,
    *,
    registry: CollectorRegistry,
    finish: Finish | None = None,
    hand_over: HandOver | None = None,
    step_bytes: int = 0,
    client: ClientSettings = NO_CLIENT,
) -> AsyncIterator[Serving]:
    """Serve gRPC and metrics, where and to whom the configuration says, while the block lasts; port 0 takes a free one.

    `step_bytes` is how large a step may be that comes in one message. `client` is what the service shows when it calls
    others.

    Raises:
        InvalidArgument: one of them is no address, or a setting of `auth` or `tls` makes no sense.
        FailedPrecondition: one of them is not loopback, in development mode or without TLS, or is taken.
    """
    at = parse_address(config.listen, field="listen", any_port=True)
    metrics_at = parse_address(config.metrics_listen, field="metrics_listen", any_port=True)
    async with AsyncExitStack() as stack:
        if config.auth.certificates and config.tls.client_ca is None:
            raise InvalidArgument.of_field("auth.certificates", "needs tls.client_ca")
        callers = await stack.enter_async_context(known_callers(config.auth))
        server = GrpcServer(
            services,
            host=at.host,
            port=at.port,
            registry=registry,
            max_request_bytes=max(MAX_REQUEST_BYTES, step_bytes + BESIDE_STEP_BYTES),
            authenticator=callers,
            tls=config.tls,
        )
        ServiceCollector(config.tls, client, registry)
        await stack.enter_async_context(server)
        exposition = Exposition(
            registry,
            is_ready=lambda: not server.draining,
            host=metrics_at.host,
            port=metrics_at.port,
            anywhere=callers is not None,  # what it tells is for everybody
        )
        await stack.enter_async_context(exposition)
        yield Serving(server, exposition.address, finish, hand_over)
