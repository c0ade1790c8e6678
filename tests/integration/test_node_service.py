"""The node's own `ExecuteStep`: what is refused before anything starts, and what its messages may hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import grpc.aio
import pytest

from executor_node.servicer import ExecutorNodeServicer
from fanfold.errors import InvalidArgument
from fanfold.model.node import Node
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.v1 import step_pb2
from integration.node_harness import NodeUnderTest, eventually, running_node

pytestmark = pytest.mark.process

NO_CONTEXT = cast("grpc.aio.ServicerContext[Any, Any]", None)
"""The servicer looks at none."""


class Service:
    """The servicer over a node without gRPC."""

    def __init__(self, node: NodeUnderTest) -> None:
        self._servicer = ExecutorNodeServicer(node.executions, lambda: Node(name="node-under-test"))

    def execute(
        self, agent: str, prompt: str = "-", *, schema: str | None = None, request_id: str = "", progress: bool = False
    ) -> AsyncIterator[pb.ExecutorNodeExecuteStepResponse]:
        step = step_pb2.AgentStepSpec(
            task_id="t", agent=agent, description="a test", prompt=prompt, output_schema_json=schema
        )
        request = pb.ExecutorNodeExecuteStepRequest(step=step, request_id=request_id, progress=progress)
        return self._servicer.ExecuteStep(request, NO_CONTEXT)

    async def outcome(self, agent: str, prompt: str = "-", *, request_id: str = "") -> step_pb2.StepOutcome:
        responses = [response async for response in self.execute(agent, prompt, request_id=request_id)]
        return responses[-1].events[-1].ended.outcome


def kinds(responses: Sequence[pb.ExecutorNodeExecuteStepResponse]) -> list[str | None]:
    return [event.WhichOneof("event") for response in responses for event in response.events]


@pytest.mark.contract("C20", "C41")
@pytest.mark.parametrize("schema", ['{"$ref": "https://example.org/schema"}', '{"type": 7}', '{"pattern": "(?=a)"}'])
async def test_a_schema_that_cannot_be_used_is_refused_before_anything_starts(tmp_path: Path, schema: str) -> None:
    async with running_node(tmp_path) as node:
        with pytest.raises(InvalidArgument) as refusal:
            await anext(Service(node).execute("shell", "touch ran", schema=schema))
        assert node.executions.status().running_steps == 0
    assert [violation.field for violation in refusal.value.violations] == ["step.output_schema"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.contract("C39", "C41")
async def test_a_prompt_beyond_the_limit_is_refused_naming_field_and_limit(tmp_path: Path) -> None:
    async with running_node(tmp_path, prompt_bytes=9) as node:
        assert (await Service(node).outcome("plain", "é" * 4)).success
        with pytest.raises(InvalidArgument) as refusal:
            await anext(Service(node).execute("plain", "é" * 5))
    (violation,) = refusal.value.violations
    assert violation.field == "step.prompt"
    assert violation.description == "must be at most 9 bytes (step.prompt_bytes), not 10"


@pytest.mark.contract("F1")
async def test_a_call_without_a_request_id_waits_until_its_step_is_gone_however_often_it_is_cancelled(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path, stop_grace=0.3) as node:
        service = Service(node)

        async def run() -> None:
            async for _ in service.execute("will_not_stop", progress=True):
                began.set()

        began = asyncio.Event()
        call = asyncio.create_task(run())
        await began.wait()
        for _ in range(2):
            call.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await call
        await eventually(lambda: node.executions.status().running_steps == 0)
        assert (await service.outcome("plain")).success


@pytest.mark.contract("C11", "C41")
async def test_what_gathers_while_the_caller_does_not_read_comes_in_messages_that_any_client_takes(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path) as node:
        call = Service(node).execute("chatters", "0.8", progress=True)
        responses = [await anext(call)]
        await eventually(lambda: node.executions.status().running_steps == 0)
        responses += [response async for response in call]
    told = kinds(responses)
    assert (told[0], told[-1]) == ("started", "ended")
    assert set(told[1:-1]) == {"progress"}
    assert sum(response.ByteSize() for response in responses) > 2 * 2**20
    assert max(response.ByteSize() for response in responses) < 2**20
