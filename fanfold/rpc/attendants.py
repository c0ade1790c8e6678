"""The services that tell about a server: grpc.health.v1, per service and as a whole (name ""), and reflection (C44)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from fanfold.errors import NotFound

ATTENDANTS: tuple[str, str] = (health.SERVICE_NAME, reflection.SERVICE_NAME)


class Health(health.aio.HealthServicer):  # type: ignore[misc]  # it has no types
    """The standard servicer, whose one error comes with details as all others do (C41)."""

    def __init__(self, services: Sequence[str]) -> None:
        super().__init__()
        self.services = (*services, *ATTENDANTS)

    async def serve(self) -> None:
        """Tell that all services serve."""
        for service in ("", *self.services):
            await self.set(service, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self) -> None:
        """Tell that no service serves any more. Idempotent."""
        await self.enter_graceful_shutdown()

    async def Check(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:  # noqa: N802
        """How a service fares. Raises NotFound for one that is not here."""
        if request.service not in ("", *self.services):
            raise NotFound("there is no such service here", reason="SERVICE_UNKNOWN")
        return await super().Check(request, context)


def add_attendants(server: grpc.aio.Server, health: Health) -> None:
    """Add health and reflection to a server that has not started."""
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    reflection.enable_server_reflection(health.services, server)
