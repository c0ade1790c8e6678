"""A link to a node by hand: what a coordinator sends and hears, message by message."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

import grpc.aio
from google.protobuf.duration_pb2 import Duration

from fanfold.parts import pieces_of
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.v1 import node_pb2, step_pb2

if TYPE_CHECKING:
    from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeAsyncStub

SECONDS = 20.0
"""After so long without what a test waits for, it fails."""

PROMPT = step_pb2.TEXT_FIELD_PROMPT
OUTPUT = step_pb2.TEXT_FIELD_OUTPUT


class HandLink:
    """One link that takes parts; it reads only while the test waits for something."""

    def __init__(self, call: grpc.aio.StreamStreamCall[pb.LinkRequest, pb.LinkResponse]) -> None:
        self._call = call
        self.held: list[str] = []
        self.updates: list[pb.ExecutionUpdate] = []
        self.adopted: list[pb.RunAdopted] = []
        self.status = node_pb2.NodeStatus()
        """The last one that was told."""
        self.parts: defaultdict[str, list[bytes]] = defaultdict(list)
        """What has come in parts, by execution."""
        self.credits: defaultdict[str, int] = defaultdict(int)
        self.sizes: list[int] = []
        """Sizes of all messages that were read."""

    async def send(self, **fields: object) -> None:
        """Send a message."""
        await self._call.write(pb.LinkRequest(**fields))  # type: ignore[arg-type]

    async def send_text(self, execution_id: str, text: str, piece_bytes: int = 100_000) -> None:
        """Send a prompt in parts."""
        for piece in pieces_of(text.encode(), piece_bytes):
            part = step_pb2.TextPart(field=PROMPT, piece=piece)
            await self.send(parts=[pb.ExecutionPart(execution_id=execution_id, part=part)])

    async def read(self) -> pb.LinkResponse:
        """Read one message and keep what it says."""
        message = await asyncio.wait_for(self._call.read(), SECONDS)
        assert isinstance(message, pb.LinkResponse), "the link has ended"
        self.sizes.append(message.ByteSize())
        if message.HasField("status"):
            self.status = message.status
        # What comes in one message is to be taken in this order.
        self.adopted += message.adopted
        self.updates += message.updates
        for credit in message.credits:
            self.credits[credit.execution_id] += credit.part_bytes
        for part in message.parts:
            self.parts[part.execution_id].append(part.part.piece)
        return message

    def received(self, execution_id: str) -> int:
        """How many bytes have come of an execution's texts."""
        return sum(map(len, self.parts[execution_id]))

    def text(self, execution_id: str) -> str:
        """The text that has come in parts."""
        return b"".join(self.parts[execution_id]).decode()

    async def until(self, condition: Callable[[], object]) -> None:
        """Read until something has come."""
        async with asyncio.timeout(SECONDS):
            while not condition():
                await self.read()

    async def update(self, execution_id: str, kind: str) -> pb.ExecutionUpdate:
        """The first update of that kind: started, progress, ended or rejected; read for if it has not come."""
        await self.until(lambda: self.told(execution_id, kind))
        return self.told(execution_id, kind)[0]

    def told(self, execution_id: str, kind: str) -> list[pb.ExecutionUpdate]:
        """The updates of that kind that have come."""
        return [each for each in self.updates if each.execution_id == execution_id and _kind_of(each) == kind]

    async def adopt(self, run_id: str, epoch: int) -> pb.RunAdopted:
        """Adopt a run; gives the answer, with what has come of updates before it forgotten."""
        await self.send(adoptions=[pb.AdoptRun(run_id=run_id, epoch=epoch)])
        self.adopted.clear()
        while not self.adopted:
            self.updates.clear()
            await self.read()
        return self.adopted[0]

    def break_off(self) -> None:
        """Break the link, as a connection that is lost does."""
        self._call.cancel()


def _kind_of(update: pb.ExecutionUpdate) -> str | None:
    return update.event.WhichOneof("event") or update.WhichOneof("update")


async def hand_link(
    stub: ExecutorNodeAsyncStub,
    *,
    epoch: int = 1,
    lease: int = 30,
    takes_parts: bool = True,
    infers_started: bool = False,
    progress_window: int = 0,
    coordinator: str = "c",
) -> HandLink:
    """A link that the node has welcomed; `lease` in seconds."""
    link = HandLink(stub.Link())
    hello = pb.LinkHello(
        coordinator=coordinator,
        link_epoch=epoch,
        lease=Duration(seconds=lease),
        takes_parts=takes_parts,
        infers_started=infers_started,
        progress_window=progress_window,
    )
    await link.send(hello=hello)
    welcome = (await link.read()).welcome
    assert welcome.takes_parts
    link.held = list(welcome.held_executions)
    return link


def start(
    execution_id: str,
    agent: str = "noop",
    prompt: str = "x",
    *,
    epoch: int = 1,
    follows: int = 0,
    progress: bool = False,
) -> pb.StartExecution:
    """An execution to start, with a prompt of so many bytes to follow."""
    step = step_pb2.AgentStepSpec(task_id="t", agent=agent, description="d", prompt="" if follows else prompt)
    sizes = [pb.TextSize(field=PROMPT, bytes=follows)] if follows else []
    return pb.StartExecution(
        execution_id=execution_id, run_id="run-1", epoch=epoch, step=step, follows=sizes, progress=progress
    )
