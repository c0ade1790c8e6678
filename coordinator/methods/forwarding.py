"""Calls that reach a coordinator which does not hold their run are passed on to the one that does (C19)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import grpc.aio

from coordinator.methods.callers import Context
from fanfold.errors import Unavailable
from fanfold.rpc.auth.acting import Metadata, on_behalf_of
from fanfold.rpc.call import current_principal
from fanfold.rpc.channels import open_channel
from fanfold.rpc.credentials import NO_CREDENTIALS, Credentials
from fanfold.rpc.status import from_rpc_error
from fanfold.rpc.traced import current_trace, trace_metadata
from fanfold.v1.coordinator_pb2_grpc import CoordinatorStub

if TYPE_CHECKING:
    from fanfold.v1.coordinator_pb2_grpc import CoordinatorAsyncStub

FORWARDED = "x-fanfold-forwarded"
"""Metadata key of calls that were passed on; they are not passed on again."""

MAX_CHANNELS = 16


class Forwarding:
    """Keeps channels to other coordinators, which know this one by its credentials. An async context manager."""

    def __init__(self, credentials: Credentials = NO_CREDENTIALS) -> None:
        self._credentials = credentials
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for channel in self._channels.values():
            await channel.close()

    @asynccontextmanager
    async def stream(
        self,
        address: str,
        context: Context,
        call: Callable[[CoordinatorAsyncStub, Metadata], grpc.aio.Call],
    ) -> AsyncIterator[AsyncIterator[Any]]:
        """The responses of the call that `call` makes with a stub of the coordinator at `address`, in a block.

        Raises:
            FanfoldError: as that coordinator answers; Unavailable if it cannot be reached, or the call was passed on
                before.
        """
        passed_on = call(await self._stub(address, context), _metadata())
        try:
            yield aiter(passed_on)  # type: ignore[arg-type]  # stubs do not tell streams apart here
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, address) from None
        finally:
            passed_on.cancel()

    async def unary(self, address: str, context: Context, call: Callable[[CoordinatorAsyncStub, Metadata], Any]) -> Any:
        """The response of such a call. Raises as `stream`."""
        try:
            return await call(await self._stub(address, context), _metadata())
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, address) from None

    async def _stub(self, address: str, context: Context) -> CoordinatorAsyncStub:
        if any(key == FORWARDED for key, _ in context.invocation_metadata() or ()):
            raise Unavailable("the run is moving to another coordinator", reason="RUN_MOVED", retry_delay=0.5)
        channel = self._channels.pop(address, None) or open_channel(address, credentials=self._credentials)
        self._channels[address] = channel  # the longest unused is the first
        while len(self._channels) > MAX_CHANNELS:
            await self._channels.pop(next(iter(self._channels))).close()
        return CoordinatorStub(channel)


def _metadata() -> Metadata:
    """What a call that is passed on carries: that it is, for whom, and what it is part of."""
    return ((FORWARDED, "1"), *on_behalf_of(current_principal()), *trace_metadata(current_trace()))
