"""The coordinator's end of a link: many executions over one stream, in batches (`ExecutorNode.Link`)."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime

import grpc.aio

from fanfold.background import background
from fanfold.clients.link_parts import PROGRESS_WINDOW, LinkParts
from fanfold.errors import FanfoldError, InvalidArgument, Unavailable
from fanfold.measures import FRAMES, Spread, Spreads
from fanfold.model.step import FailureCode, StepEnded, StepEvent, StepFailure, StepOutcome, StepProgressed
from fanfold.parts import LINK_WHOLE_BYTES
from fanfold.ports import ExecutionStart, LinkListener
from fanfold.rpc.channels import open_channel
from fanfold.rpc.credentials import NO_CREDENTIALS, Credentials
from fanfold.rpc.status import from_rpc_error
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.v1 import step_pb2
from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeStub
from fanfold.wire.batches import MAX_FRAME_BYTES, MAX_FRAME_ELEMENTS
from fanfold.wire.encoded import relayed_event_from_proto
from fanfold.wire.link import adopted_from_proto, rejection_from_proto
from fanfold.wire.node import node_from_proto, status_from_proto
from fanfold.wire.time import set_duration

_RENEWALS_A_LEASE = 5
"""So after a coordinator's sudden end at least four fifths of a lease are left to adopt what it has left behind."""

_MUCH_OUTPUT_CHARACTERS = 2**20
"""Output that has arrived while the node still keeps it, after which acknowledgements do not wait for the next word."""

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

    async def _converse(self, call: _LinkCall, address: str, listener: LinkListener) -> FanfoldError:
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
        link = _Link(call, listener, self.batches["sent",], takes_parts=first.welcome.takes_parts)
        listener.welcomed(node_from_proto(first.welcome.node), link, frozenset(first.welcome.held_executions))
        return await self._run(call, link, listener)

    async def _run(self, call: _LinkCall, link: _Link, listener: LinkListener) -> FanfoldError:
        renewing = link.keep_renewing(self._lease / _RENEWALS_A_LEASE)
        received = self.batches["received",]
        async with background(link.write(), renewing, link.parts.progress.keep_asking()):
            try:
                async with asyncio.timeout(self._silence) as silence:
                    async for message in _messages(call):
                        silence.reschedule(asyncio.get_running_loop().time() + self._silence)
                        if message.updates:
                            received.add(len(message.updates))
                        _dispatch(message, listener, link)
            except TimeoutError:
                return Unavailable(f"nothing heard from the node for {self._silence:g} s")
            return await _error_of(call)


_LinkCall = grpc.aio.StreamStreamCall[pb.LinkRequest, pb.LinkResponse]


class _Link:
    """Implements `NodeLink`: gathers what is to be said and writes it whenever the former message is away."""

    def __init__(self, call: _LinkCall, listener: LinkListener, sent: Spread, *, takes_parts: bool) -> None:
        self._call = call
        self._listener = listener
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
        if self.parts.is_too_large(start):
            self._listener.execution_event(start.execution_id, _too_large(start))
            return
        self._starts[start.execution_id] = start
        self._wake.set()

    def unsent(self) -> list[str]:
        return [*self._starts, *self.parts.unsent()]

    def want(self, execution_id: str) -> None:
        self.parts.want(execution_id)

    def adopt(self, run_id: str, epoch: int) -> None:
        self._adoptions[run_id] = epoch
        self._wake.set()

    def cancel(self, execution_id: str, reason: str, delay: float = 0.0) -> bool:
        if self._starts.pop(execution_id, None) is not None:
            return False
        self.parts.withdraw(execution_id)
        self._cancels.append((execution_id, reason, delay))
        self._wake.set()
        return True

    def finish(self) -> None:
        self._finished = True
        self._wake.set()

    def acknowledge(self, execution_id: str) -> None:
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


async def _messages(call: _LinkCall) -> AsyncIterator[pb.LinkResponse]:
    with suppress(grpc.aio.AioRpcError):
        while isinstance(message := await call.read(), pb.LinkResponse):
            yield message


def _dispatch(message: pb.LinkResponse, listener: LinkListener, link: _Link) -> None:
    if message.HasField("node"):
        listener.offer_changed(node_from_proto(message.node))
    if message.HasField("status"):
        listener.status_changed(status_from_proto(message.status))
    if message.credits:
        link.parts.take_credits(message)
    for adopted in message.adopted:
        listener.run_adopted(adopted_from_proto(adopted))
    for update in message.updates:
        if update.follows:
            _expect(update, listener, link)
        elif update.HasField("event"):
            _tell(update.execution_id, _event_of(update.event), listener, link)
        elif update.HasField("rejected"):
            link.parts.withdraw(update.execution_id)
            listener.execution_rejected(update.execution_id, rejection_from_proto(update.rejected))
    for part in message.parts:
        _add(part, listener, link)


def _tell(execution_id: str, event: StepEvent | None, listener: LinkListener, link: _Link) -> None:
    if event is None:
        return
    if isinstance(event, StepEnded):
        link.arrived(len(event.outcome.output))
    listener.execution_event(execution_id, event)
    if isinstance(event, StepEnded):
        link.parts.progress.forget(execution_id)
    elif isinstance(event, StepProgressed):
        link.parts.progress.told(execution_id)


def _expect(update: pb.ExecutionUpdate, listener: LinkListener, link: _Link) -> None:
    try:
        link.parts.expect(update)
    except InvalidArgument as error:
        _tell(update.execution_id, _unreadable(update.event.task_id, error), listener, link)


def _add(part: pb.ExecutionPart, listener: LinkListener, link: _Link) -> None:
    try:
        event = link.parts.add(part)
    except InvalidArgument as error:
        ending = link.parts.discard(part.execution_id)
        event = None if ending is None else _unreadable(ending.task_id, error)
    _tell(part.execution_id, event, listener, link)


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


async def _error_of(call: _LinkCall) -> FanfoldError:
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
