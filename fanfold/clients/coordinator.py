"""What a coordinator does for its callers, over gRPC (`fanfold.v1.Coordinator`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import grpc.aio
from google.protobuf.message import Message

from fanfold.errors import FailedPrecondition
from fanfold.model.node import NodesChanged, NodeView
from fanfold.model.run import EventDetail, RunEvent
from fanfold.model.step import AgentStepSpec, StepEvent
from fanfold.rpc.channels import open_channel
from fanfold.rpc.status import from_rpc_error
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1.coordinator_pb2_grpc import CoordinatorStub
from fanfold.wire.batches import batches
from fanfold.wire.node import view_from_proto
from fanfold.wire.run import detail_to_proto, run_event_from_proto
from fanfold.wire.step import event_from_proto, spec_to_proto

if TYPE_CHECKING:
    from fanfold.v1.coordinator_pb2_grpc import CoordinatorAsyncStub


class CoordinatorClient:
    """A connection to one coordinator, to be entered. Every method raises FanfoldError as the coordinator answers."""

    def __init__(self, server: str) -> None:
        self.server = server
        self._channel = open_channel(server, field="server")
        self._stub: CoordinatorAsyncStub = CoordinatorStub(self._channel)
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        await self._channel.close()

    def _open_stub(self) -> CoordinatorAsyncStub:
        if self._closed:
            raise FailedPrecondition("this mesh object is closed; use it within its `with` block")
        return self._stub

    async def parallel(
        self,
        specs: Sequence[AgentStepSpec],
        *,
        detail: EventDetail = EventDetail.OUTCOMES,
        request_id: str = "",
    ) -> AsyncGenerator[RunEvent, None]:
        """Run a fan-out and give its events; closing the iterator cancels the run."""
        opening = pb.RunOpen(request_id=request_id, events=detail_to_proto(detail), parallel=pb.ParallelRun())
        # Made before the call: what cannot be put into a message is raised here, and not inside gRPC.
        requests = [pb.RunRequest(open=opening), *_step_requests(specs)]
        call = self._open_stub().Run(iter(requests))
        try:
            async for response in call:
                for message in response.events:
                    event = run_event_from_proto(message)
                    if event is not None:
                        yield event
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self.server) from None
        finally:
            call.cancel()

    async def execute_step(
        self, spec: AgentStepSpec, *, detail: EventDetail = EventDetail.PROGRESS, request_id: str = ""
    ) -> AsyncGenerator[StepEvent, None]:
        """Place one step and give its events; closing the iterator cancels the step."""
        request = pb.CoordinatorExecuteStepRequest(request_id=request_id, events=detail_to_proto(detail))
        spec_to_proto(spec, request.step)
        call = self._open_stub().ExecuteStep(request)
        try:
            async for response in call:
                for message in response.events:
                    event = event_from_proto(message)
                    if event is not None:
                        yield event
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self.server) from None
        finally:
            call.cancel()

    async def list_nodes(self) -> list[NodeView]:
        """All nodes that the coordinator knows."""
        views: list[NodeView] = []
        request = pb.ListNodesRequest()
        while True:
            try:
                response = await self._open_stub().ListNodes(request)
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error, self.server) from None
            views += map(view_from_proto, response.nodes)
            if not response.next_page_token:
                return views
            request.page_token = response.next_page_token

    async def watch_nodes(self) -> AsyncGenerator[NodesChanged, None]:
        """All nodes first, then those that change, until the iterator is closed."""
        call = self._open_stub().WatchNodes(pb.WatchNodesRequest())
        try:
            async for response in call:
                yield NodesChanged(
                    nodes=tuple(map(view_from_proto, response.nodes)), forgotten=tuple(response.forgotten)
                )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self.server) from None
        finally:
            call.cancel()


def _step_requests(specs: Sequence[AgentStepSpec]) -> Iterator[pb.RunRequest]:
    def add(spec: AgentStepSpec, request: pb.RunRequest) -> Message:
        return spec_to_proto(spec, request.steps.steps.add())

    return batches(specs, pb.RunRequest, add)
