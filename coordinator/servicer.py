"""gRPC on one side, the coordinator's domain on the other: translates, calls, translates back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, suppress
from typing import Any

import grpc.aio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from coordinator.placement.discovery import announced
from coordinator.placement.nodes import Nodes
from coordinator.runs.checks import RequestChecks
from coordinator.runs.opening import Opening
from coordinator.runs.runs import Runs
from fanfold.errors import DeadlineExceeded, FailedPrecondition, FanfoldError, InvalidArgument, Unimplemented
from fanfold.model.run import RunEvent
from fanfold.model.step import AgentStepSpec, StepEvent
from fanfold.model.validation import parse_request_id, parse_spec, parse_specs
from fanfold.rpc.addresses import loopback, parse_address
from fanfold.rpc.server import Service
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1.coordinator_pb2_grpc import CoordinatorServicer as GeneratedServicer
from fanfold.v1.coordinator_pb2_grpc import add_CoordinatorServicer_to_server
from fanfold.wire.batches import batches
from fanfold.wire.node import view_to_proto
from fanfold.wire.paging import key_of_token, page_size_of, page_token
from fanfold.wire.run import detail_from_proto, event_into
from fanfold.wire.step import event_to_proto, spec_from_proto

ANONYMOUS = "anonymous"
"""The principal of every caller until callers can be authenticated; services listen on loopback only until then."""

ANNOUNCE_WITHIN = 10.0
"""Seconds within which a node repeats its announcement."""

NEXT_MESSAGE_SECONDS = 0.5
MAX_REFUSED_MESSAGES = 1000
"""How long and for how much more of a request that is refused already is waited: as long as it keeps coming."""

Context = grpc.aio.ServicerContext[Any, Any]


def service(runs: Runs, checks: RequestChecks, nodes: Nodes) -> Service:
    """The coordinator as a service to be served."""
    servicer = CoordinatorServicer(runs, checks, nodes)  # type: ignore[abstract]  # the rest answers UNIMPLEMENTED
    return Service(
        "fanfold.v1.Coordinator",
        servicer,
        add_CoordinatorServicer_to_server,
        unattended=frozenset({"AnnounceNode", "WatchNodes"}),
    )


class CoordinatorServicer(GeneratedServicer):
    """Serves `fanfold.v1.Coordinator`. What it does not override answers UNIMPLEMENTED."""

    def __init__(self, runs: Runs, checks: RequestChecks, nodes: Nodes) -> None:
        self._runs = runs
        self._checks = checks
        self._nodes = nodes

    async def Run(  # noqa: N802 - named by the proto
        self, request_iterator: AsyncIterator[pb.RunRequest], context: Context
    ) -> AsyncIterator[pb.RunResponse]:
        """Run a fan-out while the stream lasts."""
        opening, specs = await self._read_whole(aiter(request_iterator))
        async with self._runs.parallel(opening, specs) as feed:
            while events := await feed.read():
                for response in _run_responses(events):
                    yield response

    async def ExecuteStep(  # noqa: N802
        self, request: pb.CoordinatorExecuteStepRequest, context: Context
    ) -> AsyncIterator[pb.CoordinatorExecuteStepResponse]:
        """Place and run one step while the stream lasts."""
        self._checks.refuse_fat_step(request.step.ByteSize(), path="step")
        spec = parse_spec(spec_from_proto(request.step), path="step")
        opening = Opening(
            owner=ANONYMOUS,
            request_id=parse_request_id(request.request_id),
            detail=detail_from_proto(request.events),
        )
        async with self._runs.step(opening, spec) as feed:
            while events := await feed.read():
                for response in _step_responses(events):
                    yield response

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

    async def _read_whole(self, requests: AsyncIterator[pb.RunRequest]) -> tuple[Opening, list[AgentStepSpec]]:
        """The request, or why it is refused; told after its last message, or gRPC clients would fail at sending it."""
        try:
            return await self._read_run(requests)
        except FanfoldError:
            with suppress(TimeoutError, StopAsyncIteration):
                for _ in range(MAX_REFUSED_MESSAGES):
                    async with asyncio.timeout(NEXT_MESSAGE_SECONDS):
                        await anext(requests)
            raise

    async def _read_run(self, requests: AsyncIterator[pb.RunRequest]) -> tuple[Opening, list[AgentStepSpec]]:
        opening: Opening | None = None
        specs: list[AgentStepSpec] = []
        schemas: dict[str, Any] = {}
        size = 0
        async for request in requests:
            match request.WhichOneof("message"):
                case "open":
                    if opening is not None:
                        raise InvalidArgument.of_field("open", "must be sent once")
                    opening = _opening_of(request.open)
                case "steps":
                    if opening is None:
                        raise InvalidArgument.of_field("open", "must be sent before steps")
                    size += request.ByteSize()
                    self._checks.refuse_oversize(len(specs) + len(request.steps.steps), size)
                    for index, step in enumerate(request.steps.steps, start=len(specs)):
                        self._checks.refuse_fat_step(step.ByteSize(), path=f"steps[{index}]")
                    specs += _specs_of(request.steps, first_index=len(specs), schemas=schemas)
                case _:
                    raise InvalidArgument("a message must have open or steps")
        if opening is None:
            raise InvalidArgument.of_field("open", "is required")
        return opening, specs


def _opening_of(message: pb.RunOpen) -> Opening:
    match message.WhichOneof("kind"):
        case "parallel":
            pass
        case "script":
            raise Unimplemented("workflow scripts are not in this release")
        case _:
            raise InvalidArgument.of_field("open.kind", "is required: parallel or script")
    if message.workflow_id:
        raise Unimplemented("resumable runs (open.workflow_id) are not in this release")
    if message.HasField("budget_tokens"):
        raise Unimplemented("budgets (open.budget_tokens) are not in this release")
    return Opening(
        owner=ANONYMOUS,
        request_id=parse_request_id(message.request_id, path="open.request_id"),
        detail=detail_from_proto(message.events),
    )


def _specs_of(batch: pb.StepBatch, *, first_index: int, schemas: dict[str, Any]) -> list[AgentStepSpec]:
    specs = [
        spec_from_proto(step, path=f"steps[{index}]", schemas=schemas)
        for index, step in enumerate(batch.steps, start=first_index)
    ]
    return parse_specs(specs, first_index=first_index)


def _run_responses(events: Sequence[RunEvent]) -> Iterator[pb.RunResponse]:
    def add(event: RunEvent, response: pb.RunResponse) -> Message:
        return event_into(event, response.events.add())

    return batches(events, pb.RunResponse, add)


def _step_responses(events: Sequence[StepEvent]) -> Iterator[pb.CoordinatorExecuteStepResponse]:
    def add(event: StepEvent, response: pb.CoordinatorExecuteStepResponse) -> Message:
        return event_to_proto(event, response.events.add())

    return batches(events, pb.CoordinatorExecuteStepResponse, add)


def _address_of(request: pb.AnnounceNodeRequest) -> str:
    address = parse_address(request.address)
    try:
        loopback(address.host)
    except FailedPrecondition:
        # Whoever announces is not known yet, and must not choose what the coordinator dials elsewhere.
        raise InvalidArgument.of_field("address", "must be on loopback until callers can be authenticated") from None
    return str(address)


async def _next_within(
    requests: AsyncIterator[pb.AnnounceNodeRequest], seconds: float
) -> pb.AnnounceNodeRequest | None:
    try:
        async with asyncio.timeout(seconds):
            return await anext(requests, None)
    except TimeoutError:
        raise DeadlineExceeded(f"no announcement came within {seconds:g} s") from None
