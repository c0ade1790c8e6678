"""A run's next holder asks nodes what they have of it, takes that over, or leaves it to a newer one (C19)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from coordinator.placement.adoption import AdoptedExecution, Adoption, adopt_run
from coordinator.placement.execution import Execution, ExecutionName, work_of
from coordinator.placement.mesh import Mesh
from coordinator.placement.node import Leases
from coordinator.placement.nodes import Nodes
from coordinator.placement.queue import Patience, PlacementQueue
from coordinator.scope import Scope
from fanfold.errors import Aborted
from fanfold.model.node import NodeStatus
from fanfold.ports import RunAdopted
from fanfold.schema import SchemaValidator
from support.adoption import CERTAINTY, FIRST, LEASE, RUN, FakeNode, Setting, begin, journaled

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


@asynccontextmanager
async def adopting(setting: Setting, timeout: float = CERTAINTY) -> AsyncIterator[asyncio.Task[list[str]]]:
    """Adopt the run while the block lasts; gives the ids of what was adopted."""

    async def adopt() -> list[str]:
        return [each.execution.execution_id for each in await setting.nodes.adopt(RUN, 2, "n", timeout) or []]

    task = asyncio.ensure_future(adopt())
    await asyncio.sleep(0)
    yield task
    task.cancel()
    await asyncio.wait({task})


async def test_a_node_is_asked_at_once_if_it_is_linked_and_else_when_it_is(setting: Setting) -> None:
    async with adopting(setting) as adopted:
        assert setting.node.link.adoptions == [(RUN, 2)]
        setting.node.answer(running=[FIRST])
        assert await adopted == [FIRST]
    await setting.no_link()
    async with adopting(setting) as adopted:
        await setting.links(2)
        assert setting.node.link.adoptions == [(RUN, 2)]
        setting.node.answer(running=[FIRST])
        assert await adopted == [FIRST]
    await setting.no_link()
    await setting.links(3)
    assert setting.node.link.adoptions == [], "what was answered is not asked again"


async def test_a_node_that_may_have_heard_the_question_is_waited_for_as_long_as_it_may_hold_something(
    setting: Setting,
) -> None:
    loop = asyncio.get_running_loop()
    async with adopting(setting, timeout=0.05) as adopted:
        await asyncio.sleep(0.8 * CERTAINTY)
        await setting.no_link()
        lost_at = loop.time()
        assert await asyncio.wait_for(adopted, 5) == []
        assert loop.time() - lost_at >= 0.95 * CERTAINTY


async def test_a_node_that_was_never_reached_is_waited_for_no_longer_than_asked(setting: Setting) -> None:
    await setting.no_link()
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with adopting(setting, timeout=0.1) as adopted:
        assert await asyncio.wait_for(adopted, 5) == []
    assert 0.1 <= loop.time() - began < CERTAINTY


async def test_an_ending_that_comes_before_the_answer_is_left_on_the_node(setting: Setting) -> None:
    async with adopting(setting) as adopted:
        # The node has heard the question, and its answer was lost with the link. So it tells the ending of its own.
        await setting.no_link()
        setting.node.held |= {FIRST, "run-11/a/1.1.1.0"}
        await setting.links(2)
        setting.node.end(FIRST)
        setting.node.end("run-11/a/1.1.1.0")
        assert setting.node.link.acknowledged == ["run-11/a/1.1.1.0"]
        setting.node.answer(ended=[FIRST])
        setting.node.end(FIRST)
        assert await adopted == [FIRST]
    assert setting.node.link.acknowledged == ["run-11/a/1.1.1.0"]


async def test_an_answer_that_nobody_waits_for_any_more_is_left_to_the_next_holder(setting: Setting) -> None:
    async with adopting(setting):
        pass
    setting.node.answer(running=[FIRST])
    assert setting.node.link.cancels == [(FIRST, LEASE)]
    setting.node.end(FIRST)
    assert setting.node.link.acknowledged == []
    assert setting.known.standing.in_flight == 0


async def test_an_answer_in_the_same_turn_as_the_end_of_the_wait_is_left_to_the_next_holder(setting: Setting) -> None:
    adoption = Adoption(RUN, 2)
    adoption.answered([])
    adoption.answered([AdoptedExecution(Execution(setting.known, FIRST), ExecutionName(1, 1, 1, "a"), False)])
    assert await adoption.wait() == []
    assert setting.node.link.cancels == [(FIRST, LEASE)]


async def test_an_answer_in_the_same_turn_as_the_cancel_is_left_to_the_next_holder(setting: Setting) -> None:
    async with adopting(setting) as adopted:
        setting.node.answer(running=[FIRST])
        adopted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adopted
    assert setting.node.link.cancels == [(FIRST, LEASE)]


async def test_an_answer_to_an_earlier_question_is_not_taken_for_this_ones(setting: Setting) -> None:
    async with adopting(setting) as adopted:
        setting.node.answer(epoch=1)
        await asyncio.sleep(0)
        assert not adopted.done()
        setting.node.answer(running=[FIRST])
        assert await adopted == [FIRST]


@pytest.mark.contract("C13")
async def test_a_node_that_was_started_again_is_lost_with_what_it_had(setting: Setting) -> None:
    scope = Scope(run_id=RUN, owner="alice", progress=True, epoch=2)
    asking = asyncio.ensure_future(adopt_run(setting.nodes, scope, ["n"], 60.0))
    while not setting.node.link.adoptions:
        await asyncio.sleep(0)
    setting.node.listener.run_adopted(RunAdopted(run_id=RUN, epoch=2, unbegun=True))
    await asking
    assert scope.lost_nodes == {"n"}


@pytest.mark.contract("F5")
async def test_a_run_of_which_a_newer_epoch_is_known_is_not_ours(setting: Setting) -> None:
    async with adopting(setting) as adopted:
        setting.node.listener.run_adopted(RunAdopted(run_id=RUN, epoch=2, stale=True))
        with pytest.raises(Aborted) as refused:
            await adopted
        assert refused.value.reason == "RUN_MOVED"


@pytest.mark.contract("F5", "C19")
async def test_what_one_node_hands_over_is_left_to_the_newer_holder_that_another_knows(setting: Setting) -> None:
    class OneIsStale(Nodes):
        async def adopt(self, run_id: str, epoch: int, node_name: str, timeout: float) -> list[AdoptedExecution]:
            if node_name == "stale":
                raise Aborted("the run has moved")
            return [AdoptedExecution(Execution(setting.known, FIRST), ExecutionName(1, 1, 1, "a"), False)]

    scope = Scope(run_id=RUN, owner="alice", progress=True, epoch=2)
    with pytest.raises(Aborted):
        await adopt_run(OneIsStale(setting.node), scope, ["one", "stale"], 60.0)
    assert setting.node.link.cancels == [(FIRST, LEASE)]


async def test_what_runs_takes_a_place_until_it_ends_and_what_has_ended_none(setting: Setting) -> None:
    async with adopting(setting) as adopted:
        setting.node.answer(running=[FIRST], ended=[f"{RUN}/b/1.1.1.0"])
        setting.node.end(f"{RUN}/b/1.1.1.0")
        await adopted
        assert setting.known.standing.in_flight == 1
        setting.node.end(FIRST)
        assert setting.known.standing.in_flight == 0


async def test_others_that_become_ours_are_not_counted_twice(setting: Setting) -> None:
    others = [f"{RUN}/{n}/1.1.1.0" for n in range(4)]
    setting.known.status_changed(NodeStatus(concurrency_hint=4, max_concurrent_steps=8, running_steps=4))
    async with adopting(setting) as adopted:
        setting.node.answer(running=others)
        await adopted
        assert setting.known.standing.load() == 1


@pytest.mark.contract("C43")
async def test_a_draining_nodes_link_lasts_until_endings_are_durable(setting: Setting) -> None:
    scope, node = journaled(), setting.node
    step = begin(setting.mesh.executor(scope))
    await asyncio.sleep(0)
    node.listener.status_changed(NodeStatus(concurrency_hint=4, max_concurrent_steps=4, draining=True))
    node.end(node.link.starts[0].execution_id)
    assert (await step).success
    assert not node.link.finished
    assert scope.receipts is not None
    scope.receipts.settled("a")
    assert node.link.acknowledged == [node.link.starts[0].execution_id]
    assert node.link.finished


@pytest.mark.contract("F2")
async def test_a_node_that_comes_back_at_another_address_keeps_what_runs_there(setting: Setting) -> None:
    scope, node = journaled(), setting.node
    steps = [begin(setting.mesh.executor(scope), key) for key in "abc"]
    await asyncio.sleep(0.01)
    runs, ended, gone = (start.execution_id for start in node.link.starts)
    node.end(ended)
    await setting.no_link()
    node.address = "y:1"
    setting.nodes.want("y:1")
    node.held = frozenset({runs, ended})
    await until_links(setting, 2)
    await asyncio.sleep(1.5 * CERTAINTY)  # its lease is renewed from there, so nothing ends with it
    assert not steps[0].done()
    node.end(ended)
    assert node.link.acknowledged == [], "it is not durable yet"
    node.end(runs)
    assert (await steps[0]).success
    assert scope.receipts is not None
    for key in "ab":
        scope.receipts.settled(key)
    assert sorted(node.link.acknowledged) == sorted([runs, ended])
    again = [start for start in node.link.starts if start.spec.task_id == "c"]
    assert [ExecutionName.of_id(start.execution_id, RUN) for start in again] == [
        ExecutionName(2, 2, 1, "c", work_of(again[0].spec))
    ], "what it holds no more is tried again"
    assert gone.startswith(f"{RUN}/c/2.1.1.")
    node.end(again[0].execution_id)
    await asyncio.gather(*steps)
    assert [known.standing.in_flight for known in setting.nodes] == [0, 0]


async def until_links(setting: Setting, count: int) -> None:
    setting.node.up.set()
    async with asyncio.timeout(5):
        while len(setting.node.links) < count:
            await asyncio.sleep(0.001)
