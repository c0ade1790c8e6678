"""gRPC on one side, the node's executions on the other: translates, calls, translates back."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import grpc.aio

from executor_node.executions import Executions
from executor_node.link_servicer import STATUS_INTERVAL, serve_link
from executor_node.links import Links
from fanfold.errors import Aborted
from fanfold.feed import Feed
from fanfold.model.node import Node
from fanfold.model.step import StepEnded, StepEvent, StepProgressed
from fanfold.model.validation import parse_request_id, parse_spec
from fanfold.rpc.server import Service
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeServicer as GeneratedServicer
from fanfold.v1.executor_node_pb2_grpc import add_ExecutorNodeServicer_to_server
from fanfold.wire.ahead import step_batches
from fanfold.wire.node import node_to_proto
from fanfold.wire.step import spec_from_proto

Context = grpc.aio.ServicerContext[Any, Any]


def service(servicer: ExecutorNodeServicer) -> Service:
    """The node as a service to be served."""
    return Service(
        "fanfold.v1.ExecutorNode", servicer, add_ExecutorNodeServicer_to_server, unattended=frozenset({"WatchNode"})
    )


class ExecutorNodeServicer(GeneratedServicer):
    """Serves `fanfold.v1.ExecutorNode`. `describe` tells what the node is and how it fares now."""

    def __init__(self, executions: Executions, describe: Callable[[], Node]) -> None:
        self._executions = executions
        self._describe = describe
        self._links = Links(executions)

    def tell_status(self) -> None:
        """Tell every coordinator at once how the node fares now."""
        self._links.tell_status()

    async def DescribeNode(  # noqa: N802 - named by the proto
        self, request: pb.DescribeNodeRequest, context: Context
    ) -> pb.DescribeNodeResponse:
        """Tell what the node offers."""
        return pb.DescribeNodeResponse(node=node_to_proto(self._describe()))

    async def WatchNode(  # noqa: N802
        self, request: pb.WatchNodeRequest, context: Context
    ) -> AsyncIterator[pb.WatchNodeResponse]:
        """Follow the description."""
        told: Node | None = None
        while True:
            node = self._describe()
            if node != told:
                yield pb.WatchNodeResponse(node=node_to_proto(node))
                told = node
            await asyncio.sleep(STATUS_INTERVAL)

    async def ExecuteStep(  # noqa: N802
        self, request: pb.ExecutorNodeExecuteStepRequest, context: Context
    ) -> AsyncIterator[pb.ExecutorNodeExecuteStepResponse]:
        """Run one step while the stream lasts."""
        spec = parse_spec(spec_from_proto(request.step), path="step")
        request_id = parse_request_id(request.request_id)
        await self._executions.check(spec)
        execution_id = f"direct/{request_id or uuid.uuid4().hex}/1"
        feed: Feed[StepEvent] = Feed()

        def tell(event: StepEvent) -> None:
            if not isinstance(event, StepProgressed) or (request.progress and feed.has_room()):
                feed.push(event)
            if isinstance(event, StepEnded):
                feed.close()

        try:
            self._executions.start(execution_id, spec, tell)
        except Aborted:
            message = f"a call with the request id {request_id!r} is under way"
            raise Aborted(message, reason="REQUEST_UNDER_WAY") from None
        try:
            while events := await feed.read():
                for response in step_batches(
                    events, pb.ExecutorNodeExecuteStepResponse, takes_parts=request.takes_parts
                ):
                    yield response
        finally:
            if not feed.is_closed:
                self._executions.cancel(execution_id, "the call was cancelled")
                while await feed.read():
                    pass

    async def Link(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.LinkRequest], context: Context
    ) -> AsyncIterator[pb.LinkResponse]:
        """Carry all steps of one coordinator."""
        async with aclosing(serve_link(self._links, aiter(request_iterator), self._describe)) as responses:
            async for response in responses:
                yield response
