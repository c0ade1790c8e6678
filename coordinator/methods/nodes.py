"""Methods about nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from google.protobuf.duration_pb2 import Duration

from coordinator.methods.callers import Context
from coordinator.placement.discovery import announced
from coordinator.placement.nodes import Nodes
from fanfold.errors import DeadlineExceeded, InvalidArgument
from fanfold.model.principal import ANONYMOUS
from fanfold.rpc.addresses import is_loopback, parse_address
from fanfold.rpc.call import current_call
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1.coordinator_pb2_grpc import CoordinatorServicer as GeneratedServicer
from fanfold.wire.node import view_to_proto
from fanfold.wire.paging import key_of_token, page_size_of, page_token

ANNOUNCE_WITHIN = 10.0
"""Seconds within which a node repeats its announcement."""


class NodeMethods(GeneratedServicer):
    """AnnounceNode, ListNodes, WatchNodes."""

    _nodes: Nodes

    async def AnnounceNode(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.AnnounceNodeRequest], context: Context
    ) -> AsyncIterator[pb.AnnounceNodeResponse]:
        """Know a node while its announcement lasts."""
        requests = aiter(request_iterator)
        first = await _next_within(requests, ANNOUNCE_WITHIN)
        if first is None:
            return
        address = _address_of(first)
        with announced(self._nodes, address):
            request: pb.AnnounceNodeRequest | None = first
            while request is not None:
                if _address_of(request) != address:
                    raise InvalidArgument.of_field("address", "must stay the same within a stream")
                yield pb.AnnounceNodeResponse(repeat_within=Duration(seconds=int(ANNOUNCE_WITHIN)))
                request = await _next_within(requests, ANNOUNCE_WITHIN * 2)

    async def ListNodes(  # noqa: N802
        self, request: pb.ListNodesRequest, context: Context
    ) -> pb.ListNodesResponse:
        """List the known nodes."""
        size = page_size_of(request.page_size)
        views = self._nodes.views()
        if request.page_token:
            after = key_of_token(request.page_token, str, str)
            views = [view for view in views if (view.node.name, view.address) > after]
        page = views[:size]
        more = len(views) > size
        return pb.ListNodesResponse(
            nodes=map(view_to_proto, page),
            next_page_token=page_token(page[-1].node.name, page[-1].address) if more else "",
        )

    async def WatchNodes(  # noqa: N802
        self, request: pb.WatchNodesRequest, context: Context
    ) -> AsyncIterator[pb.WatchNodesResponse]:
        """Follow the known nodes."""
        async with aclosing(self._nodes.watch()) as changes:
            async for change in changes:
                yield pb.WatchNodesResponse(nodes=map(view_to_proto, change.nodes), forgotten=change.forgotten)


def _address_of(request: pb.AnnounceNodeRequest) -> str:
    address = parse_address(request.address)
    # Somebody who is not known must not choose what the coordinator dials elsewhere.
    if current_call().actor is ANONYMOUS and not is_loopback(address.host):
        raise InvalidArgument.of_field("address", "must be on loopback in development mode")
    return str(address)


async def _next_within(
    requests: AsyncIterator[pb.AnnounceNodeRequest], seconds: float
) -> pb.AnnounceNodeRequest | None:
    try:
        async with asyncio.timeout(seconds):
            return await anext(requests, None)
    except TimeoutError:
        raise DeadlineExceeded(f"no announcement came within {seconds:g} s") from None
