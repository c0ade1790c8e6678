"""A node's word to a coordinator where it can be dialled (`Coordinator.AnnounceNode`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc.aio
import structlog

from fanfold.backoff import full_jitter
from fanfold.errors import FanfoldError, Unavailable
from fanfold.rpc.addresses import Address
from fanfold.rpc.channels import open_channel
from fanfold.rpc.credentials import NO_CREDENTIALS, Credentials
from fanfold.rpc.status import from_rpc_error
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1.coordinator_pb2_grpc import CoordinatorStub

REPEAT_INTERVAL = 5.0
"""Seconds between two announcements; coordinators expect one every 10."""

LONGEST_PAUSE = 5.0
"""Most seconds before a lost coordinator is called again; each pause is random below, and short at first (F9)."""

_log = structlog.get_logger(__name__)


async def keep_announcing(
    coordinator: Address, *, name: str, address: str, credentials: Credentials = NO_CREDENTIALS
) -> None:
    """Announce the node at `address` to a coordinator, again whenever that is lost, until cancelled."""
    failures = 0
    request = pb.AnnounceNodeRequest(name=name, address=address)
    async with open_channel(str(coordinator), credentials=credentials) as channel:
        while True:
            error: FanfoldError = Unavailable("the coordinator closed the stream")
            try:
                async for _ in _acknowledgements(channel, request):
                    if failures:
                        _log.info("announced", coordinator=str(coordinator))
                    failures = 0
            except grpc.aio.AioRpcError as raised:
                error = from_rpc_error(raised, str(coordinator))
            failures += 1
            if failures == 1:
                _log.info("not announced", coordinator=str(coordinator), why=error.message)
            await asyncio.sleep(full_jitter(failures, first=0.2, most=LONGEST_PAUSE))


async def _acknowledgements(
    channel: grpc.aio.Channel, request: pb.AnnounceNodeRequest
) -> AsyncIterator[pb.AnnounceNodeResponse]:
    """Each answer of the coordinator; ends as soon as the stream does, not only when it is written to again."""
    call = CoordinatorStub(channel).AnnounceNode()
    ended = asyncio.ensure_future(call.code())
    try:
        while True:
            await call.write(request)
            answer = await call.read()
            if not isinstance(answer, pb.AnnounceNodeResponse):
                return
            yield answer
            await asyncio.wait([ended], timeout=REPEAT_INTERVAL)
    except asyncio.InvalidStateError:
        return  # it ended between two announcements
    finally:
        call.cancel()
        await ended
