"""Starts and endings in one word: what is told to a coordinator that infers the one from the other, or does not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fanfold.rpc.channels import open_channel
from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeStub
from support.links import hand_link, start
from support.mesh import running_mesh

if TYPE_CHECKING:
    from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeAsyncStub

pytestmark = [pytest.mark.process, pytest.mark.contract("C11")]

MANY = [f"e{number}" for number in range(50)]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[ExecutorNodeAsyncStub]:
    async with running_mesh(tmp_path) as running, AsyncExitStack() as stack:
        channel = await stack.enter_async_context(open_channel(running.nodes[0].address))
        yield ExecutorNodeStub(channel)


async def test_a_step_that_is_over_at_once_tells_its_start_with_its_ending(node: ExecutorNodeAsyncStub) -> None:
    link = await hand_link(node, infers_started=True)
    await link.send(starts=[start("first")])
    await link.update("first", "ended")  # the worker is there from now on
    await link.send(starts=[start(name) for name in MANY])
    endings = [(await link.update(name, "ended")).event.ended.outcome for name in MANY]
    assert all(ending.success and ending.HasField("started_at") and ending.session_id for ending in endings)
    # Some may have taken longer on a machine that is busy.
    assert [name for name in MANY if not link.told(name, "started")]


async def test_a_coordinator_that_infers_nothing_is_told_every_start(node: ExecutorNodeAsyncStub) -> None:
    link = await hand_link(node)
    await link.send(starts=[start(name) for name in MANY])
    for name in MANY:
        ending = (await link.update(name, "ended")).event.ended.outcome
        (told,) = link.told(name, "started")
        assert told.event.started.session_id == ending.session_id
        assert told.event.time == ending.started_at


async def test_the_start_of_a_step_that_goes_on_is_told_meanwhile(node: ExecutorNodeAsyncStub, tmp_path: Path) -> None:
    link = await hand_link(node, infers_started=True)
    await link.send(starts=[start("e", "shell", "until [ -e gate ]; do sleep 0.02; done")])
    await link.update("e", "started")
    (tmp_path / "gate").touch()
    assert (await link.update("e", "ended")).event.ended.outcome.success
    assert len(link.told("e", "started")) == 1


async def test_progress_does_not_come_before_the_start(node: ExecutorNodeAsyncStub) -> None:
    link = await hand_link(node, infers_started=True)
    await link.send(starts=[start("e", "shell", "echo one; sleep 1", progress=True)])
    await link.update("e", "ended")
    assert [each.event.WhichOneof("event") for each in link.updates][:2] == ["started", "progress"]
