"""One service as a process or as part of one: its gRPC server and its exposition, up and down together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from fanfold.rpc.addresses import Address, parse_address
from fanfold.rpc.exposition import Exposition
from fanfold.rpc.server import GrpcServer, Service


@dataclass(frozen=True, slots=True)
class Serving:
    """A service that is up."""

    server: GrpcServer
    metrics: Address

    @property
    def address(self) -> str:
        """Where it serves gRPC, as host:port."""
        return str(self.server.address)


@asynccontextmanager
async def serving(
    services: Sequence[Service], *, listen: str, metrics_listen: str, registry: CollectorRegistry
) -> AsyncIterator[Serving]:
    """Serve gRPC at `listen` and metrics at `metrics_listen` while the block lasts; port 0 takes a free one.

    Raises:
        InvalidArgument: one of them is no address.
        FailedPrecondition: one of them is not loopback, or is taken.
    """
    at = parse_address(listen, field="listen", any_port=True)
    metrics_at = parse_address(metrics_listen, field="metrics_listen", any_port=True)
    async with AsyncExitStack() as stack:
        server = GrpcServer(services, host=at.host, port=at.port, registry=registry)
        await stack.enter_async_context(server)
        exposition = await stack.enter_async_context(
            Exposition(registry, is_ready=lambda: not server.draining, host=metrics_at.host, port=metrics_at.port)
        )
        yield Serving(server, exposition.address)


@asynccontextmanager
async def background(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `works` while the block lasts. One that fails cancels the block, and its error is raised."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
