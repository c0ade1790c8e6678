"""The coordinator's end of links: many executions over one stream, in batches (`ExecutorNode.Link`)."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress

import grpc.aio

from fanfold.background import background
from fanfold.clients.link import Link, LinkCall, hear
from fanfold.clients.link_parts import PROGRESS_WINDOW
from fanfold.errors import FanfoldError, InvalidArgument, Unavailable
from fanfold.measures import FRAMES, Spreads
from fanfold.ports import LinkListener
from fanfold.rpc.channels import open_channel
from fanfold.rpc.credentials import NO_CREDENTIALS, Credentials
from fanfold.rpc.status import from_rpc_error
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeStub
from fanfold.wire.node import node_from_proto
from fanfold.wire.time import set_duration

_RENEWALS_A_LEASE = 5
"""So after a coordinator's sudden end at least four fifths of a lease are left to adopt what it has left behind."""

_LAST_WORD_SECONDS = 5.0
"""Longest wait for the status of a link that has ended."""


class GrpcNodeDialer:
    """Implements `NodeDialer`.

    A link is given up when nothing was heard on it for `silence` seconds: the node sends its status about once a
    second, so silence means that it is lost, whatever the connection below says (F18). What runs there is held by a
    lease of `lease` seconds, which every message renews.
    """

    def __init__(
        self,
        coordinator: str,
        *,
        lease: float = 15.0,
        silence: float = 10.0,
        connect_timeout: float = 5.0,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        # What a former life of this coordinator left on nodes is not ours until we adopt its run: it must neither be
        # kept alive by our word nor have its endings acknowledged by us.
        self._holder = f"{coordinator}/{uuid.uuid4().hex[:12]}"
        self._lease = lease
        self._silence = silence
        self._connect_timeout = connect_timeout
        self._credentials = credentials
        self.batches = Spreads(FRAMES)
        """Elements of messages on links, by direction."""
        # So that a node tells a new link from one that it has not yet seen dead.
        self._epochs = itertools.count(1)

    async def hold_link(self, address: str, listener: LinkListener) -> None:
        """Hold a link for as long as it lasts (NodeDialer)."""
        raise await self._hold_link(address, listener)

    async def _hold_link(self, address: str, listener: LinkListener) -> FanfoldError:
        """Why it ended. The error has no traceback: that would keep the call, and gRPC a call's connection."""
        async with open_channel(address, credentials=self._credentials) as channel:
            call = ExecutorNodeStub(channel).Link()
            try:
                return await self._converse(call, address, listener)
            except grpc.aio.AioRpcError as error:
                return from_rpc_error(error)
            except FanfoldError as error:
                return error.with_traceback(None)
            finally:
                call.cancel()

    async def _converse(self, call: LinkCall, address: str, listener: LinkListener) -> FanfoldError:
        hello = pb.LinkHello(
            coordinator=self._holder,
            link_epoch=next(self._epochs),
            takes_parts=True,
            progress_window=PROGRESS_WINDOW,
            infers_started=True,
        )
        set_duration(hello.lease, self._lease)
        try:
            async with asyncio.timeout(self._connect_timeout):
                await call.write(pb.LinkRequest(hello=hello))
                first = await call.read()
        except TimeoutError:
            return Unavailable(f"no answer from {address} within {self._connect_timeout:g} s")
        except asyncio.InvalidStateError:
            first = grpc.aio.EOF
        if not isinstance(first, pb.LinkResponse):
            # The call has ended; its status says why.
            return await _error_of(call)
        if not first.HasField("welcome"):
            return InvalidArgument(f"{address} answered a link without a welcome")
        link = Link(call, listener, self.batches["sent",], takes_parts=first.welcome.takes_parts)
        listener.welcomed(node_from_proto(first.welcome.node), link, frozenset(first.welcome.held_executions))
        return await self._run(call, link)

    async def _run(self, call: LinkCall, link: Link) -> FanfoldError:
        renewing = link.keep_renewing(self._lease / _RENEWALS_A_LEASE)
        received = self.batches["received",]
        async with background(link.write(), renewing, link.parts.progress.keep_asking()):
            try:
                async with asyncio.timeout(self._silence) as silence:
                    async for message in _messages(call):
                        silence.reschedule(asyncio.get_running_loop().time() + self._silence)
                        if message.updates:
                            received.add(len(message.updates))
                        hear(message, link)
            except TimeoutError:
                return Unavailable(f"nothing heard from the node for {self._silence:g} s")
            return await _error_of(call)


async def _messages(call: LinkCall) -> AsyncIterator[pb.LinkResponse]:
    with suppress(grpc.aio.AioRpcError):
        while isinstance(message := await call.read(), pb.LinkResponse):
            yield message


async def _error_of(call: LinkCall) -> FanfoldError:
    try:
        async with asyncio.timeout(_LAST_WORD_SECONDS):
            code = await call.code()
            details = await call.details()
            metadata = await call.initial_metadata(), await call.trailing_metadata()
    except TimeoutError:
        return Unavailable("the node's answer cannot be read")
    if code is grpc.StatusCode.OK:
        return Unavailable("the node closed its link")
    return from_rpc_error(grpc.aio.AioRpcError(code, *metadata, details=details))
