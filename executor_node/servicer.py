"""gRPC on one side, the node's executions on the other: translates, calls, translates back."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import grpc.aio
from google.protobuf.message import Message

from executor_node.executions import Executions
from executor_node.links import CoordinatorLink, Holder, Links, Update, Word
from fanfold.background import background
from fanfold.errors import Aborted, InvalidArgument
from fanfold.feed import Feed
from fanfold.model.node import Node, NodeStatus
from fanfold.model.step import StepEnded, StepEvent, StepProgressed
from fanfold.model.validation import parse_request_id, parse_spec
from fanfold.ports import Rejection
from fanfold.rpc.server import Service
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeServicer as GeneratedServicer
from fanfold.v1.executor_node_pb2_grpc import add_ExecutorNodeServicer_to_server
from fanfold.wire.batches import MAX_FRAME_BYTES, MAX_FRAME_ELEMENTS, batches
from fanfold.wire.link import rejection_into, start_from_proto
from fanfold.wire.node import node_to_proto, status_to_proto
from fanfold.wire.step import event_to_proto, spec_from_proto
from fanfold.wire.time import seconds_from_proto

MAX_LEASE_SECONDS = 3600.0

STATUS_INTERVAL = 1.0
"""Seconds between two words on how the node fares."""

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
                for response in _step_responses(events):
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
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        if first is None or not first.hello.coordinator:
            raise InvalidArgument.of_field("hello.coordinator", "must be in the first message")
        hello = first.hello
        lease = _lease_of(hello)
        link = self._links.open(hello.coordinator, hello.link_epoch, lease)
        try:
            node = node_to_proto(self._describe())
            yield pb.LinkResponse(welcome=pb.LinkWelcome(node=node, held_executions=link.holder.held))
            async with background(_hear(requests, link), self._tell_status(link)):
                while words := await link.words.read():
                    for response in _link_responses(words):
                        yield response
            if link.ended_by is not None:
                raise link.ended_by
        finally:
            link.close()

    async def _tell_status(self, link: CoordinatorLink) -> None:
        while True:
            await asyncio.sleep(STATUS_INTERVAL)
            link.words.push(self._executions.status())


async def _hear(requests: AsyncIterator[pb.LinkRequest], link: CoordinatorLink) -> None:
    holder = link.holder
    async for request in requests:
        if link.words.is_closed:
            return
        holder.renew()
        for execution_id in request.acknowledged:
            holder.acknowledge(execution_id)
        for cancel in request.cancels:
            holder.cancel(cancel.execution_id, cancel.reason)
        for start in request.starts:
            _start(start, holder)
    link.finish()


def _lease_of(hello: pb.LinkHello) -> float:
    lease = seconds_from_proto(hello.lease)
    if not 0 <= lease <= MAX_LEASE_SECONDS:
        raise InvalidArgument.of_field("hello.lease", f"must be from 0 to {MAX_LEASE_SECONDS:g} s")
    return lease


def _start(message: pb.StartExecution, holder: Holder) -> None:
    try:
        start = start_from_proto(message)
        parse_spec(start.spec)
    except InvalidArgument as error:
        step = message.step
        holder.fail(
            message.execution_id, step.task_id, step.agent, f"the node was sent what is no step: {error.message}"
        )
    else:
        holder.start(start)


def _link_responses(words: Sequence[Word]) -> Iterator[pb.LinkResponse]:
    """Messages for all words, the latest status before all else: nothing that is fat holds it up."""
    status: NodeStatus | None = None
    updates: list[Update] = []
    for word in words:
        if isinstance(word, NodeStatus):
            status = word
        else:
            updates.append(word)
    if status is not None:
        yield pb.LinkResponse(status=status_to_proto(status))

    def add(update: Update, response: pb.LinkResponse) -> Message:
        message = response.updates.add()
        message.execution_id, what = update
        if isinstance(what, Rejection):
            rejection_into(what, message.rejected)
        else:
            event_to_proto(what, message.event)
        return message

    yield from batches(updates, pb.LinkResponse, add, max_bytes=MAX_FRAME_BYTES, max_elements=MAX_FRAME_ELEMENTS)


def _step_responses(events: Sequence[StepEvent]) -> Iterator[pb.ExecutorNodeExecuteStepResponse]:
    def add(event: StepEvent, response: pb.ExecutorNodeExecuteStepResponse) -> Message:
        return event_to_proto(event, response.events.add())

    return batches(events, pb.ExecutorNodeExecuteStepResponse, add)
