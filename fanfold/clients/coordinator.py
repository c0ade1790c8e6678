"""What a coordinator does for its callers, over gRPC (`fanfold.v1.Coordinator`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

import grpc.aio
from google.protobuf.message import Message

from fanfold.clients.run_call import EventCall, RunCall
from fanfold.errors import FailedPrecondition
from fanfold.model.node import NodesChanged, NodeView
from fanfold.model.run import EventDetail, Run
from fanfold.model.step import AgentStepSpec, StepEvent
from fanfold.rpc.channels import open_channel
from fanfold.rpc.status import from_rpc_error
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1.coordinator_pb2_grpc import CoordinatorStub
from fanfold.wire.batches import batches
from fanfold.wire.node import view_from_proto
from fanfold.wire.run import detail_to_proto, run_from_proto
from fanfold.wire.step import event_from_proto, spec_to_proto

if TYPE_CHECKING:
    from fanfold.v1.coordinator_pb2_grpc import CoordinatorAsyncStub


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a run is about besides its steps or items. Without a workflow id it ends with its call."""

    request_id: str = ""
    workflow_id: str = ""
    budget_tokens: int | None = None


NO_TERMS = Terms()


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

    def parallel(
        self,
        specs: Sequence[AgentStepSpec],
        terms: Terms = NO_TERMS,
        *,
        detail: EventDetail = EventDetail.OUTCOMES,
        from_sequence: int = 0,
    ) -> RunCall:
        """Begin a fan-out, or go on reading what an earlier call with the same request id has begun."""
        opening = pb.RunOpen(
            request_id=terms.request_id,
            workflow_id=terms.workflow_id,
            budget_tokens=terms.budget_tokens,
            events=detail_to_proto(detail),
            parallel=pb.ParallelRun(total_steps=len(specs)),
            from_sequence=from_sequence,
        )
        # Made before the call: what cannot be put into a message is raised here, and not inside gRPC.
        requests = [pb.RunRequest(open=opening), *_step_requests(specs)]
        return EventCall(self._open_stub().Run(iter(requests)), self.server)

    def watch_run(self, run_id: str, *, detail: EventDetail, from_sequence: int = 0) -> RunCall:
        """Follow a run's events from a number on; 0 means from the first that is kept."""
        request = pb.WatchRunRequest(run_id=run_id, events=detail_to_proto(detail), from_sequence=from_sequence)
        return EventCall(self._open_stub().WatchRun(request), self.server)

    async def cancel_run(self, run_id: str, reason: str = "") -> Run:
        """Ask a run to stop; the run as it then is. Raises NotFound for one that is not kept."""
        try:
            response = await self._open_stub().CancelRun(pb.CancelRunRequest(run_id=run_id, reason=reason))
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self.server) from None
        return run_from_proto(response.run)

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
