"""gRPC on one side, the node's executions on the other: translates, calls, translates back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import grpc.aio

from executor_node.direct import DirectCalls
from executor_node.executions import Executions
from executor_node.keeping import DEFAULT_KEEPING, Keeping
from executor_node.link_servicer import STATUS_INTERVAL, serve_link
from executor_node.links import Links
from executor_node.policy import policy_of
from fanfold.model.node import Node
from fanfold.model.validation import parse_request_id, parse_spec
from fanfold.rpc.call import current_principal
from fanfold.rpc.server import Service
from fanfold.rpc.traced import current_trace
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeServicer as GeneratedServicer
from fanfold.v1.executor_node_pb2_grpc import add_ExecutorNodeServicer_to_server
from fanfold.wire.ahead import step_batches
from fanfold.wire.node import node_to_proto
from fanfold.wire.step import spec_from_proto

Context = grpc.aio.ServicerContext[Any, Any]


def service(servicer: ExecutorNodeServicer, *, direct_callers: bool) -> Service:
    """The node as a service to be served; `direct_callers` says whether to callers too."""
    return Service(
        "fanfold.v1.ExecutorNode",
        servicer,
        add_ExecutorNodeServicer_to_server,
        policy_of(direct_callers=direct_callers),
        unattended=frozenset({"WatchNode"}),
    )


class ExecutorNodeServicer(GeneratedServicer):
    """Serves `fanfold.v1.ExecutorNode`.

    Args:
        executions: what runs here.
        describe: tells what the node is and how it fares now.
        keeping: what is kept of steps that have ended.
        caller_grace: seconds that a direct caller's step with a request id goes on without a call.
    """

    def __init__(
        self,
        executions: Executions,
        describe: Callable[[], Node],
        keeping: Keeping = DEFAULT_KEEPING,
        *,
        caller_grace: float = 30.0,
    ) -> None:
        self._describe = describe
        self.links = Links(executions, keeping)
        self._direct = DirectCalls(executions, keeping, caller_grace=caller_grace)

    def tell_status(self) -> None:
        """Tell every coordinator at once how the node fares now."""
        self.links.tell_status()

    def tell_node(self) -> None:
        """Tell every coordinator what the node is from now on."""
        self.links.tell_node(self._describe())

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
        """Run one step, or go on telling of one that an earlier call with the request id has begun."""
        spec = parse_spec(spec_from_proto(request.step), path="step")
        request_id = _own(parse_request_id(request.request_id))
        call = self._direct.call(spec, request_id, progress=request.progress, trace=current_trace())
        async with call as feed:
            while events := await feed.read():
                for response in step_batches(
                    events, pb.ExecutorNodeExecuteStepResponse, takes_parts=request.takes_parts
                ):
                    yield response

    async def Link(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.LinkRequest], context: Context
    ) -> AsyncIterator[pb.LinkResponse]:
        """Carry all steps of one coordinator."""
        async with aclosing(serve_link(self.links, aiter(request_iterator), self._describe)) as responses:
            async for response in responses:
                yield response


def _own(request_id: str) -> str:
    """The request id as one of the caller's own, for others may not take its step over. No principal has a space."""
    return request_id and f"{current_principal().name} {request_id}"
