"""Nodes that are not ours: real gRPC servers that answer a coordinator's link as a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from executor_node.policy import policy_of
from fanfold.rpc.server import GrpcServer, Service
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.v1 import node_pb2, step_pb2
from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeServicer, add_ExecutorNodeServicer_to_server

Answer = Callable[[pb.StartExecution], Iterable[step_pb2.StepEvent]]
"""What the node tells of an execution that it is asked to run."""


def ended(outcome: step_pb2.StepOutcome) -> step_pb2.StepEvent:
    """The end of a step, as a message."""
    event = step_pb2.StepEvent(task_id=outcome.task_id, ended=step_pb2.StepEnded(outcome=outcome))
    event.time.GetCurrentTime()
    return event


def well_done(start: pb.StartExecution) -> Iterable[step_pb2.StepEvent]:
    """The answer of a node that does as it is asked."""
    yield ended(step_pb2.StepOutcome(task_id=start.step.task_id, agent=start.step.agent, success=True, output="done"))


@dataclass
class StrangeNode:
    """A node that offers the agent `noop`, keeps what it is sent, and says of it what `answer` gives."""

    name: str = "strange"
    answer: Answer = well_done
    received: list[pb.StartExecution] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    links: int = 0

    async def converse(self, requests: AsyncIterator[pb.LinkRequest]) -> AsyncIterator[pb.LinkResponse]:
        """Its end of a link."""
        self.links += 1
        agent = node_pb2.Agent(name="noop", description="d")
        status = node_pb2.NodeStatus(concurrency_hint=4, max_concurrent_steps=4)
        node = node_pb2.Node(name=self.name, boot_id=f"boot of {self.name}", agents=[agent], status=status)
        async for request in requests:
            if request.HasField("hello"):
                yield pb.LinkResponse(welcome=pb.LinkWelcome(node=node))
            self.acknowledged += request.acknowledged
            for start in request.starts:
                self.received.append(start)
                for event in self.answer(start):
                    yield pb.LinkResponse(updates=[pb.ExecutionUpdate(execution_id=start.execution_id, event=event)])


class _Servicer(ExecutorNodeServicer):
    def __init__(self, node: StrangeNode) -> None:
        self._node = node

    def Link(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.LinkRequest], context: Any
    ) -> AsyncIterator[pb.LinkResponse]:
        return self._node.converse(request_iterator)


@asynccontextmanager
async def serving_node(node: StrangeNode, port: int = 0) -> AsyncIterator[str]:
    """The address of a strange node that is up while the block lasts; port 0 takes a free one."""
    servicer = _Servicer(node)  # type: ignore[abstract]  # links are all that a coordinator asks for
    service = Service(
        "fanfold.v1.ExecutorNode", servicer, add_ExecutorNodeServicer_to_server, policy_of(direct_callers=True)
    )
    async with GrpcServer([service], port=port) as server:
        yield str(server.address)
