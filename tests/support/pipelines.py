"""A caller of `Coordinator.RunPipeline` that sends and answers by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from google.protobuf.duration_pb2 import Duration

from fanfold.feed import Feed
from fanfold.rpc.channels import open_channel
from fanfold.rpc.status import from_rpc_error
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1 import run_pb2, step_pb2
from fanfold.v1.coordinator_pb2_grpc import CoordinatorStub
from support.mesh import RunningMesh

DETAIL = run_pb2.EVENT_DETAIL_LIFECYCLE


def step(prompt: str = "x", task_id: str = "t", agent: str = "noop", **more: Any) -> step_pb2.AgentStepSpec:
    return step_pb2.AgentStepSpec(task_id=task_id, agent=agent, description="d", prompt=prompt, **more)


def opened(stages: int = 1, timeout: float = 30.0, **more: Any) -> pb.RunPipelineRequest:
    seconds = Duration(seconds=int(timeout), nanos=round(timeout % 1 * 1e9))
    more = {"events": DETAIL, **more}
    return pb.RunPipelineRequest(open=pb.PipelineOpen(stages=stages, stage_timeout=seconds, **more))


def items(*texts: str, last: bool = True) -> pb.RunPipelineRequest:
    return pb.RunPipelineRequest(items=pb.ItemBatch(items_json=texts, last=last))


def answer(request: pb.StageRequest, spec: step_pb2.AgentStepSpec | None = None, **more: Any) -> pb.StageAnswer:
    if spec is not None:
        return pb.StageAnswer(id=request.id, step=spec)
    return pb.StageAnswer(id=request.id, **(more or {"end": pb.EndOfChain()}))


Respond = Callable[[pb.StageRequest], pb.StageAnswer]


class Caller:
    """One call, whose requests and events can be waited for one by one."""

    def __init__(self, stub: Any, *first: pb.RunPipelineRequest) -> None:
        self._out: Feed[pb.RunPipelineRequest] = Feed()
        for message in first:
            self._out.push(message)
        self.call = stub.RunPipeline(self._sent())
        self.events: list[run_pb2.RunEvent] = []
        self.requests: list[pb.StageRequest] = []
        self.close_at_end = True
        self._answered = 0

    async def _sent(self) -> AsyncIterator[pb.RunPipelineRequest]:
        while messages := await self._out.read():
            for message in messages:
                yield message

    def answer(self, *answers: pb.StageAnswer) -> None:
        self._out.push(pb.RunPipelineRequest(answers=pb.StageAnswers(answers=answers)))

    def send(self, message: pb.RunPipelineRequest) -> None:
        self._out.push(message)

    def close(self) -> None:
        self._out.close()

    async def read(self) -> bool:
        """Read the next message; False at the end."""
        try:
            response = await asyncio.wait_for(self.call.read(), 20)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        if response is grpc.aio.EOF:
            code = await self.call.code()
            if code is not grpc.StatusCode.OK:
                raise from_rpc_error(await _error_of(self.call))
            return False
        self.events += response.events
        self.requests += response.requests
        if self.close_at_end and self.told("ended"):
            self.close()
        return True

    async def until(self, condition: Callable[[Caller], bool]) -> None:
        while not condition(self):
            assert await self.read(), "the call ended before that"

    def respond(self, respond: Respond) -> None:
        """Answer what has been asked and not been answered here."""
        if len(self.requests) > self._answered:
            self.answer(*map(respond, self.requests[self._answered :]))
            self._answered = len(self.requests)

    async def to_end(self, respond: Respond | None = None) -> None:
        """Read to the end, answering every request; the run's own end is the last event."""
        while await self.read():
            if respond is not None:
                self.respond(respond)

    def told(self, kind: str) -> list[Any]:
        """The run's events of one kind; of steps, `ended` and `begun`."""
        if kind in ("step_started", "step_ended"):
            name = kind.removeprefix("step_")
            return [event.step for event in self.events if event.step.event.WhichOneof("event") == name]
        return [getattr(event, kind) for event in self.events if event.WhichOneof("event") == kind]

    @property
    def ended(self) -> run_pb2.RunEnded:
        assert self.events[-1].WhichOneof("event") == "ended"
        return self.events[-1].ended


async def _error_of(call: Any) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
    )


@asynccontextmanager
async def calling(running: RunningMesh, *first: pb.RunPipelineRequest) -> AsyncIterator[Caller]:
    async with open_channel(running.coordinator.address) as channel:
        caller = Caller(CoordinatorStub(channel), *first)
        try:
            yield caller
        finally:
            caller.close()
            caller.call.cancel()
