"""Nodes are noted in the journal before anything of a run is sent to them (C19)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from coordinator.placement.execution import ExecutionName, work_of
from coordinator.placement.mesh import Mesh
from coordinator.placement.node import Leases
from coordinator.placement.nodes import Nodes
from coordinator.placement.queue import Patience, PlacementQueue
from coordinator.scope import Hold
from coordinator.waiting import WaitsOn
from fanfold.errors import Aborted
from fanfold.schema import SchemaValidator
from support.adoption import CERTAINTY, LEASE, RUN, FakeNode, Setting, begin, journaled
from support.mesh import until

pytestmark = pytest.mark.contract("C19")


@pytest.fixture
async def setting() -> AsyncIterator[Setting]:
    node = FakeNode()
    leases = Leases(lease=LEASE, certainty=CERTAINTY)
    async with Nodes(node, redial_delay=0.02, leases=leases) as nodes, SchemaValidator() as validator:
        nodes.want("x:1")
        (known,) = nodes
        setting = Setting(node, nodes, known, Mesh(nodes, PlacementQueue(nodes, Patience()), validator))
        await setting.links(1)
        yield setting


class NotedNodes:
    """Notes which nodes are used, when the test lets it; fails if it is to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def use(self, node: str) -> None:
        self.asked.append(node)
        await self.gate.wait()
        if self.error is not None:
            raise self.error


async def test_a_node_is_noted_once_before_anything_is_sent_to_it(setting: Setting) -> None:
    noted = NotedNodes()
    executor = setting.mesh.executor(journaled(use_node=noted.use))
    steps = [begin(executor, key) for key in "abc"]
    await asyncio.sleep(0.01)
    assert (noted.asked, setting.node.link.starts) == (["n"], [])
    noted.gate.set()
    await asyncio.sleep(0.01)
    assert [ExecutionName.of_id(each.execution_id, RUN) for each in setting.node.link.starts] == [
        ExecutionName(2, 1, 1, key, work_of(each.spec))
        for key, each in zip("abc", setting.node.link.starts, strict=True)
    ]
    for start in setting.node.link.starts:
        assert start.epoch == 2
        setting.node.end(start.execution_id)
    await asyncio.gather(*steps)
    assert noted.asked == ["n"]


@pytest.mark.contract("C42")
async def test_a_step_that_has_a_place_says_that_it_waits_for_the_journal(setting: Setting) -> None:
    noted, leases = NotedNodes(), set[str]()
    scope = journaled(use_node=noted.use, hold=Hold(lambda: bool(leases)))
    step = begin(setting.mesh.executor(scope))
    await until(lambda: bool(noted.asked), "the journal is asked")
    scope.waiting.look()
    assert scope.waiting.standstill is not None
    assert scope.waiting.standstill.on is WaitsOn.JOURNAL
    noted.gate.set()
    await asyncio.sleep(0.01)
    assert (scope.waiting.look(), setting.node.link.starts) == ("the journal", [])
    leases.add(RUN)
    scope.hold.renewed()
    await until(lambda: bool(setting.node.link.starts), "the step is sent")
    assert scope.waiting.look() == ""
    (start,) = setting.node.link.starts
    setting.node.end(start.execution_id)
    await step


async def test_a_step_whose_node_cannot_be_noted_is_not_sent_and_leaves_its_place(setting: Setting) -> None:
    noted = NotedNodes()
    noted.error = Aborted("the run has moved")
    noted.gate.set()
    executor = setting.mesh.executor(journaled(use_node=noted.use))
    for asked in (1, 2):
        with pytest.raises(Aborted, match="has moved"):
            await begin(executor)
        assert len(noted.asked) == asked, "what has failed was not noted"
    assert setting.node.link.starts == []
    assert setting.known.standing.in_flight == 0


async def test_a_step_that_is_cancelled_while_its_node_is_noted_leaves_the_noting_to_the_next(setting: Setting) -> None:
    noted = NotedNodes()
    executor = setting.mesh.executor(journaled(use_node=noted.use))
    first, second = begin(executor), begin(executor, "b")
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.wait({first})
    noted.gate.set()
    await asyncio.sleep(0.01)
    (start,) = setting.node.link.starts
    assert start.spec.task_id == "b"
    assert noted.asked == ["n", "n"]
    second.cancel()
    setting.node.end(start.execution_id)
    await asyncio.wait({second})
