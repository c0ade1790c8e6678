"""One service as a process or as part of one: its gRPC server and its exposition, up and down together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from fanfold.rpc.addresses import Address, parse_address
from fanfold.rpc.exposition import Exposition
from fanfold.rpc.server import MAX_REQUEST_BYTES, GrpcServer, Service

Finish = Callable[[float], Awaitable[None]]
"""Finishes what a service has under way, within a grace in seconds, so that the calls that carry it end."""

HandOver = Callable[[], Awaitable[None]]
"""Gives what a service holds to its like, at once."""

LAST_CALLS_SECONDS = 2.0

BESIDE_STEP_BYTES = 2**20
"""More than a message has beside its step, so that a step that is a little too large is refused by name."""


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
    *,
    listen: str,
    metrics_listen: str,
    registry: CollectorRegistry,
    finish: Finish | None = None,
    hand_over: HandOver | None = None,
    step_bytes: int = 0,
) -> AsyncIterator[Serving]:
    """Serve gRPC at `listen` and metrics at `metrics_listen` while the block lasts; port 0 takes a free one.

    `step_bytes` is how large a step may be that comes in one message.

    Raises:
        InvalidArgument: one of them is no address.
        FailedPrecondition: one of them is not loopback, or is taken.
    """
    at = parse_address(listen, field="listen", any_port=True)
    metrics_at = parse_address(metrics_listen, field="metrics_listen", any_port=True)
    async with AsyncExitStack() as stack:
        most = max(MAX_REQUEST_BYTES, step_bytes + BESIDE_STEP_BYTES)
        server = GrpcServer(services, host=at.host, port=at.port, registry=registry, max_request_bytes=most)
        await stack.enter_async_context(server)
        exposition = await stack.enter_async_context(
            Exposition(registry, is_ready=lambda: not server.draining, host=metrics_at.host, port=metrics_at.port)
        )
        yield Serving(server, exposition.address, finish, hand_over)
