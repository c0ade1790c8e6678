"""gRPC on one side, a coordinator's link on the other: translates both ways, in batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from itertools import groupby

from google.protobuf.message import Message

from executor_node.holder import not_a_step
from executor_node.link import CoordinatorLink, Credit, Update, Word
from executor_node.links import Links
from fanfold.background import background
from fanfold.errors import DeadlineExceeded, FanfoldError, InvalidArgument
from fanfold.model.node import Node, NodeStatus
from fanfold.model.step import AgentStepSpec, StepEnded
from fanfold.model.validation import parse_spec
from fanfold.parts import LINK_TEXT_BYTES, LINK_WHOLE_BYTES, LargeTexts, Piece
from fanfold.ports import ExecutionStart, Rejection, RunAdopted
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.wire.batches import MAX_FRAME_BYTES, MAX_FRAME_ELEMENTS, batches, encoded_batches
from fanfold.wire.encoded import update_to_bytes
from fanfold.wire.link import adopted_into, rejection_into, start_from_proto
from fanfold.wire.node import node_to_proto, status_to_proto
from fanfold.wire.parts import follows_from_proto, follows_into, piece_from_proto, piece_to_proto, within
from fanfold.wire.step import event_to_proto
from fanfold.wire.time import seconds_from_proto

MAX_LEASE_SECONDS = 3600.0

HELLO_WAIT = 10.0
"""Seconds that a coordinator may take to say who it is."""

_FRAME: dict[str, int] = {"max_bytes": MAX_FRAME_BYTES, "max_elements": MAX_FRAME_ELEMENTS}

STATUS_INTERVAL = 1.0
"""Seconds between two words on how the node fares."""


async def serve_link(
    links: Links, requests: AsyncIterator[pb.LinkRequest], describe: Callable[[], Node], hello_wait: float = HELLO_WAIT
) -> AsyncGenerator[pb.LinkResponse, None]:
    """Carry all steps of one coordinator (`ExecutorNode.Link`). Its hello is waited for `hello_wait` seconds.

    Raises:
        InvalidArgument: the coordinator does not say who it is, or sends what makes no sense.
        DeadlineExceeded: it says nothing at all.
        FailedPrecondition: a newer link of the same coordinator is up.
        Unavailable: nothing was heard from the coordinator for the time of its lease.
    """
    hello = await _hello_of(requests, hello_wait)
    link = links.open(
        hello.coordinator,
        hello.link_epoch,
        _lease_of(hello),
        takes_parts=hello.takes_parts,
        infers_started=hello.infers_started,
        progress_window=hello.progress_window or None,
    )
    try:
        node, held = node_to_proto(describe()), link.holder.held
        yield pb.LinkResponse(welcome=pb.LinkWelcome(node=node, held_executions=held, takes_parts=True))
        async with background(_hear(requests, link, links), _tell_status(link, links)):
            while words := await link.words.read():
                await asyncio.sleep(0)  # first the workers get what was just started
                for response in _responses(words, link):
                    if response.updates:
                        links.batches["sent",].add(len(response.updates))
                    yield response
                link.words_sent()
        if link.ended_by is not None:
            raise link.ended_by
    finally:
        link.close()


async def _hello_of(requests: AsyncIterator[pb.LinkRequest], wait: float) -> pb.LinkHello:
    try:
        async with asyncio.timeout(wait):
            first = await anext(requests, None)
    except TimeoutError:
        raise DeadlineExceeded(f"no hello came within {wait:g} s") from None
    if first is None or not first.hello.coordinator:
        raise InvalidArgument.of_field("hello.coordinator", "must be in the first message")
    return first.hello


async def _tell_status(link: CoordinatorLink, links: Links) -> None:
    while True:
        await asyncio.sleep(STATUS_INTERVAL)
        link.words.push(links.status_for(link.holder))


async def _hear(requests: AsyncIterator[pb.LinkRequest], link: CoordinatorLink, links: Links) -> None:
    """Do what the coordinator asks for, until it asks for nothing more, or for what makes no sense."""
    try:
        await _heed(requests, link, links)
    except FanfoldError as error:
        link.end(error)  # raised here, it would cancel the call in the midst of what is still to be told
    else:
        link.finish()


async def _heed(requests: AsyncIterator[pb.LinkRequest], link: CoordinatorLink, links: Links) -> None:
    holder = link.holder
    async for request in requests:
        if link.words.is_closed:
            return
        holder.renew()
        if asked := len(request.starts) + len(request.cancels) + len(request.acknowledged):
            links.batches["received",].add(asked)
        for adoption in request.adoptions:
            links.adopt(holder, adoption.run_id, adoption.epoch)
        for execution_id in request.acknowledged:
            holder.acknowledge(execution_id)
        for cancel in request.cancels:
            holder.cancel(cancel.execution_id, cancel.reason, seconds_from_proto(cancel.delay))
        for credit in request.credits:
            link.credit(credit.execution_id, credit.part_bytes)
            holder.credit(credit.execution_id, credit.progress_events)
        for start in request.starts:
            _start(start, link)
        for part in request.parts:
            holder.add(link, piece_from_proto(part))


def _lease_of(hello: pb.LinkHello) -> float:
    lease = seconds_from_proto(hello.lease)
    if not 0 <= lease <= MAX_LEASE_SECONDS:
        raise InvalidArgument.of_field("hello.lease", f"must be from 0 to {MAX_LEASE_SECONDS:g} s")
    return lease


def _start(message: pb.StartExecution, link: CoordinatorLink) -> None:
    try:
        start, sizes = start_from_proto(message), follows_from_proto(message.follows)
        if not sizes:
            parse_spec(start.spec)
    except InvalidArgument as error:
        link.holder.fail(_unreadable(message), not_a_step(error))
    else:
        if sizes:
            link.holder.expect(link, start, sizes)
        else:
            link.holder.start(start)


def _unreadable(message: pb.StartExecution) -> ExecutionStart:
    """As much of a start as can be read for certain."""
    spec = AgentStepSpec(task_id=message.step.task_id, agent=message.step.agent, description="", prompt="")
    return ExecutionStart(
        execution_id=message.execution_id, run_id=message.run_id, epoch=message.epoch, spec=spec, progress=False
    )


def _responses(words: Sequence[Word], link: CoordinatorLink) -> Iterator[pb.LinkResponse]:
    """Messages for all words: the latest status and what is as small before all else, and what is fat after it."""
    urgent, updates, pieces = pb.LinkResponse(), [], []
    for word in words:
        if isinstance(word, Credit):
            urgent.credits.add(execution_id=word.execution_id, part_bytes=word.part_bytes)
        elif isinstance(word, Piece):
            pieces.append(piece_to_proto(word))
        elif isinstance(word, NodeStatus):
            urgent.status.CopyFrom(status_to_proto(word))
        elif isinstance(word, Node):
            urgent.node.CopyFrom(node_to_proto(word))
        elif isinstance(word, RunAdopted):
            adopted_into(word, urgent.adopted.add())
        else:
            updates.append(word)
    if urgent.ByteSize():
        yield urgent
    yield from _update_responses(updates, link)
    for piece in pieces:
        yield pb.LinkResponse(parts=[piece])


def _update_responses(updates: Sequence[Update], link: CoordinatorLink) -> Iterator[pb.LinkResponse]:
    for are_small, some in groupby(updates, _is_small):
        if are_small:
            yield from encoded_batches(map(_encoded, some), "updates", pb.LinkResponse, **_FRAME)
        else:
            yield from _other_updates(some, link)


def _is_small(update: Update) -> bool:
    """Whether it is an event that certainly has no text that is to be lifted out of it."""
    event = update[1]
    if isinstance(event, StepEnded):
        return event.outcome.structured is None and len(event.outcome.output) * 4 <= LINK_TEXT_BYTES
    return not isinstance(event, Rejection)


def _encoded(update: Update) -> bytes:
    execution_id, event = update
    assert not isinstance(event, Rejection), "it is an event"
    return update_to_bytes(execution_id, event)


def _other_updates(updates: Iterable[Update], link: CoordinatorLink) -> Iterator[pb.LinkResponse]:
    large = LargeTexts(LINK_TEXT_BYTES) if link.takes_parts else None

    def add(update: Update, response: pb.LinkResponse) -> Message:
        message = response.updates.add()
        message.execution_id, what = update
        if isinstance(what, Rejection):
            rejection_into(what, message.rejected)
        else:
            event_to_proto(what if link.takes_parts else within(what, LINK_WHOLE_BYTES), message.event, large)
        if large:
            texts = large.taken()
            follows_into(texts, message)
            link.send_texts(message.execution_id, texts)
        return message

    return batches(updates, pb.LinkResponse, add, **_FRAME)
