"""How a node ends a link whose coordinator says nothing, or what makes no sense (C41)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from executor_node.counts import Counts
from executor_node.executions import Executions
from executor_node.link_servicer import serve_link
from executor_node.links import Links
from fanfold.errors import DeadlineExceeded, InvalidArgument
from fanfold.rpc.channels import open_channel
from fanfold.rpc.status import from_rpc_error
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.v1 import step_pb2
from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeStub
from support.links import hand_link, start
from support.mesh import running_mesh

pytestmark = pytest.mark.process


@pytest.mark.contract("C41", "C42")
async def test_a_coordinator_that_says_nothing_is_not_waited_for() -> None:
    async def nothing() -> AsyncIterator[pb.LinkRequest]:
        await asyncio.Event().wait()
        yield pb.LinkRequest()

    executions = Executions.__new__(Executions)  # none of its business before the hello
    executions.counts = Counts()
    links = Links(executions)
    with pytest.raises(DeadlineExceeded, match="hello"):
        await anext(serve_link(links, nothing(), lambda: pytest.fail("described itself to nobody"), hello_wait=0.1))


@pytest.mark.contract("C41")
async def test_nonsense_is_answered_after_all_that_the_node_has_to_say(tmp_path: Path) -> None:
    async with (
        running_mesh(tmp_path, node={"capacity": {"max_concurrent_steps": 64}}) as running,
        open_channel(running.nodes[0].address) as channel,
    ):
        node = ExecutorNodeStub(channel)
        link = await hand_link(node, takes_parts=False)
        await link.send(starts=[start(f"run-1/{index}/1", "echo", "x" * 150_000) for index in range(60)])
        await link.until(lambda: link.updates)
        async with asyncio.timeout(20):  # until the node cannot write on, for nobody reads
            while (await node.DescribeNode(pb.DescribeNodeRequest())).node.status.running_steps:
                await asyncio.sleep(0.01)
        nonsense = pb.ExecutionPart(execution_id="e", part=step_pb2.TextPart(piece=b"of no text"))
        await link.send(parts=[nonsense])
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await link.until(lambda: False)
    assert isinstance(from_rpc_error(raised.value), InvalidArgument)
    assert all(link.told(f"run-1/{index}/1", "ended") for index in range(60))
