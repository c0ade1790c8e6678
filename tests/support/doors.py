"""A server behind whose door a test looks at who is let in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from executor_node.policy import policy_of
from fanfold.model.principal import Principal
from fanfold.rpc.auth.settings import AuthSettings, TlsSettings
from fanfold.rpc.call import current_principal
from fanfold.rpc.channels import open_channel
from fanfold.rpc.credentials import NO_CREDENTIALS, Credentials
from fanfold.rpc.server import Service
from fanfold.rpc.serving import serving
from fanfold.v1.executor_node_pb2_grpc import add_ExecutorNodeServicer_to_server
from unit.rpc.rpc_fakes import DESCRIBE, SERVICE, FakeNode, raw_unary


@dataclass
class ServedSettings:
    """What is served where, and to whom."""

    auth: AuthSettings
    tls: TlsSettings
    listen: str = "127.0.0.1:0"
    metrics_listen: str = "127.0.0.1:0"


@dataclass
class Door:
    """A server, and who was let in."""

    address: str
    mutual_address: str
    metrics: str
    let_in: list[Principal] = field(default_factory=list)

    async def knock(
        self, credentials: Credentials = NO_CREDENTIALS, *, mutual: bool = False, header: str = ""
    ) -> Principal:
        """Call once, over a connection of its own; who that was. Raises as gRPC does."""
        metadata = [("authorization", header)] if header else None
        address = self.mutual_address if mutual else self.address
        async with open_channel(address, credentials=credentials) as channel:
            await raw_unary(channel, DESCRIBE)(b"", metadata=metadata)
        return self.let_in[-1]

    async def knock_with(self, token: str) -> Principal:
        """Call once with a token."""
        return await self.knock(header=f"Bearer {token}")


@asynccontextmanager
async def door(*, auth: Any = None, tls: Any = None) -> AsyncIterator[Door]:
    """A server with these settings, which lets callers, operators and coordinators call."""

    async def look() -> None:
        at.let_in.append(current_principal())

    node = FakeNode(on_describe=look)  # type: ignore[abstract]
    service = Service(SERVICE, node, add_ExecutorNodeServicer_to_server, policy_of(direct_callers=True))
    config = ServedSettings(AuthSettings.model_validate(auth or {}), TlsSettings.model_validate(tls or {}))
    async with serving([service], config, registry=CollectorRegistry()) as up:
        at = Door(up.address, str(up.server.mutual_address or ""), str(up.metrics))
        yield at
