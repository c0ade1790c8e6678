"""A link while it is up: what the coordinator says on it, and what it hears (`ExecutorNode.Link`)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime

import grpc.aio

from fanfold.clients.link_parts import LinkParts
from fanfold.errors import InvalidArgument
from fanfold.measures import Spread
from fanfold.model.step import FailureCode, StepEnded, StepEvent, StepFailure, StepOutcome, StepProgressed
from fanfold.parts import LINK_WHOLE_BYTES
from fanfold.ports import ExecutionStart, LinkListener
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.v1 import step_pb2
from fanfold.wire.batches import MAX_FRAME_BYTES, MAX_FRAME_ELEMENTS
from fanfold.wire.encoded import relayed_event_from_proto
from fanfold.wire.link import adopted_from_proto, rejection_from_proto
from fanfold.wire.node import node_from_proto, status_from_proto
from fanfold.wire.time import set_duration

_MUCH_OUTPUT_CHARACTERS = 2**20
"""Output that has arrived while the node still keeps it, after which acknowledgements do not wait for the next word."""

LinkCall = grpc.aio.StreamStreamCall[pb.LinkRequest, pb.LinkResponse]


class Link:
    """Implements `NodeLink`: gathers what is to be said and writes it whenever the former message is away."""

    def __init__(self, call: LinkCall, listener: LinkListener, sent: Spread, *, takes_parts: bool) -> None:
        self._call = call
        self.listener = listener
        self._sent = sent
        self._starts: dict[str, ExecutionStart] = {}
        self._adoptions: dict[str, int] = {}
        self._cancels: list[tuple[str, str, float]] = []
        self._acknowledged: list[str] = []
        self._arrived_characters = 0
        self._renewal_due = False
        self._finished = False
        self._wake = asyncio.Event()
        self.parts = LinkParts(listener, self._wake, takes_parts=takes_parts)

    def start(self, start: ExecutionStart) -> None:
        """Have an execution started."""
        if self.parts.is_too_large(start):
            self.listener.execution_event(start.execution_id, _too_large(start))
            return
        self._starts[start.execution_id] = start
        self._wake.set()

    def unsent(self) -> list[str]:
        """Executions of which the node has heard nothing that it could begin."""
        return [*self._starts, *self.parts.unsent()]

    def want(self, execution_id: str) -> None:
        """Have the ending come that the node withholds."""
        self.parts.want(execution_id)

    def adopt(self, run_id: str, epoch: int) -> None:
        """Ask for what the node holds of a run."""
        self._adoptions[run_id] = epoch
        self._wake.set()

    def cancel(self, execution_id: str, reason: str, delay: float = 0.0) -> bool:
        """Have an execution stopped, in `delay` seconds; False if the node has not heard of it."""
        if self._starts.pop(execution_id, None) is not None:
            return False
        self.parts.withdraw(execution_id)
        self._cancels.append((execution_id, reason, delay))
        self._wake.set()
        return True

    def finish(self) -> None:
        """Ask for nothing more."""
        self._finished = True
        self._wake.set()

    def acknowledge(self, execution_id: str) -> None:
        """Nobody needs an ending any more."""
        self.parts.discard(execution_id)
        self._acknowledged.append(execution_id)
        if self._has_much_acknowledged():
            self._wake.set()

    def arrived(self, characters: int) -> None:
        """An ending with so much output is here, and on the node until that is acknowledged."""
        self._arrived_characters += characters

    def _has_much_acknowledged(self) -> bool:
        """Whether the node waits for acknowledgements; few go along with the next word, a renewal at the latest."""
        much = len(self._acknowledged) >= MAX_FRAME_ELEMENTS or self._arrived_characters >= _MUCH_OUTPUT_CHARACTERS
        return much and bool(self._acknowledged)

    async def keep_renewing(self, interval: float) -> None:
        """Say something every so many seconds, also if there is nothing else to say."""
        while True:
            await asyncio.sleep(interval)
            self._renewal_due = True
            self._wake.set()

    async def write(self) -> None:
        """Write what is to be said, until nothing more is asked for or the call has ended."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the reader tells how the call ended
            while not self._finished:
                await self._wake.wait()
                self._wake.clear()
                while self._has_small() or self.parts.has_pieces():
                    if self._has_small():
                        await self._call.write(self._next_message())
                    if self.parts.has_pieces():
                        await self._call.write(self.parts.next_piece())
            await self._call.done_writing()

    def _has_small(self) -> bool:
        """Whether there is anything but pieces to be said: one piece at most keeps it waiting."""
        gathered = self._starts or self._cancels or self._adoptions or (self._finished and self._acknowledged)
        due = self._renewal_due or bool(self.parts.credits) or self._has_much_acknowledged()
        return bool(gathered) or due

    def _next_message(self) -> pb.LinkRequest:
        message, size = pb.LinkRequest(acknowledged=self._acknowledged), 0
        self._acknowledged = []
        self._arrived_characters = 0
        self._renewal_due = False
        adoptions, self._adoptions = self._adoptions, {}
        for run_id, epoch in adoptions.items():
            message.adoptions.add(run_id=run_id, epoch=epoch)
        cancels, self._cancels = self._cancels, []
        for execution_id, reason, delay in cancels:
            set_duration(message.cancels.add(execution_id=execution_id, reason=reason).delay, delay)
        self.parts.credits.write(message)
        while self._starts and len(message.starts) < MAX_FRAME_ELEMENTS and size < MAX_FRAME_BYTES:
            execution_id = next(iter(self._starts))
            size += self.parts.write_start(self._starts.pop(execution_id), message.starts.add())
        if asked := len(message.starts) + len(message.cancels) + len(message.acknowledged):
            self._sent.add(asked)
        return message


def hear(message: pb.LinkResponse, link: Link) -> None:
    """Tell the listener what a message of the node says. What cannot be read of a step is that step's alone."""
    if message.HasField("node"):
        link.listener.offer_changed(node_from_proto(message.node))
    if message.HasField("status"):
        link.listener.status_changed(status_from_proto(message.status))
    if message.credits:
        link.parts.take_credits(message)
    for adopted in message.adopted:
        link.listener.run_adopted(adopted_from_proto(adopted))
    for update in message.updates:
        if update.follows:
            _expect(update, link)
        elif update.HasField("event"):
            _tell(update.execution_id, _event_of(update.event), link)
        elif update.HasField("rejected"):
            link.parts.withdraw(update.execution_id)
            link.listener.execution_rejected(update.execution_id, rejection_from_proto(update.rejected))
    for part in message.parts:
        _add(part, link)


def _tell(execution_id: str, event: StepEvent | None, link: Link) -> None:
    if event is None:
        return
    if isinstance(event, StepEnded):
        link.arrived(len(event.outcome.output))
    link.listener.execution_event(execution_id, event)
    if isinstance(event, StepEnded):
        link.parts.progress.forget(execution_id)
    elif isinstance(event, StepProgressed):
        link.parts.progress.told(execution_id)


def _expect(update: pb.ExecutionUpdate, link: Link) -> None:
    try:
        link.parts.expect(update)
    except InvalidArgument as error:
        _tell(update.execution_id, _unreadable(update.event.task_id, error), link)


def _add(part: pb.ExecutionPart, link: Link) -> None:
    try:
        event = link.parts.add(part)
    except InvalidArgument as error:
        ending = link.parts.discard(part.execution_id)
        event = None if ending is None else _unreadable(ending.task_id, error)
    _tell(part.execution_id, event, link)


def _event_of(message: step_pb2.StepEvent) -> StepEvent | None:
    """The event; an end that cannot be read is still an end, and the step's alone."""
    try:
        return relayed_event_from_proto(message)
    except InvalidArgument as error:
        return _unreadable(message.task_id, error) if message.WhichOneof("event") == "ended" else None


def _unreadable(task_id: str, error: InvalidArgument) -> StepEnded:
    failure = StepFailure(code=FailureCode.INTERNAL, message=f"the node's outcome cannot be read: {error.message}")
    outcome = StepOutcome(task_id=task_id, agent="", success=False, failure=failure, attempts=1)
    return StepEnded(task_id=task_id, time=datetime.now(UTC), outcome=outcome)


def _too_large(start: ExecutionStart) -> StepEnded:
    message = f"the prompt is larger than {LINK_WHOLE_BYTES:,} bytes, the most for a node that takes no parts"
    failure = StepFailure(code=FailureCode.PAYLOAD_TOO_LARGE, message=message)
    task_id = start.spec.task_id
    outcome = StepOutcome(task_id=task_id, agent=start.spec.agent, success=False, failure=failure)
    return StepEnded(task_id=task_id, time=datetime.now(UTC), outcome=outcome)
