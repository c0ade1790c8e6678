"""Adoptions in every order of words and broken links: nothing is acknowledged, or started, that might be lost (C19)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from coordinator.budget import TokenBudget
from coordinator.combinators.runner import StepKey
from coordinator.placement.adoption import AdoptedExecution, Adoption, adopt_run
from coordinator.placement.execution import Execution, ExecutionName, work_of
from coordinator.placement.mesh import Mesh, MeshExecutor
from coordinator.placement.node import KnownNode, Leases
from coordinator.placement.nodes import Nodes
from coordinator.placement.queue import Patience, PlacementQueue
from coordinator.scope import Hold, Receipts, Scope
from coordinator.waiting import WaitsOn
from fanfold.errors import Aborted, FanfoldError, Unavailable
from fanfold.model.node import Agent, AgentKind, Isolation, Node, NodeStatus
from fanfold.model.run import Budget
from fanfold.model.step import (
    NO_USAGE,
    AgentStepSpec,
    FailureCode,
    StepEnded,
    StepFailure,
    StepOutcome,
    StepPolicy,
    Usage,
)
from fanfold.ports import ExecutionStart, LinkListener, RunAdopted
from fanfold.schema import SchemaValidator
from support.mesh import until

pytestmark = pytest.mark.contract("C19")

CERTAINTY = 0.6
LEASE = 0.3
RUN = "run-1"
FIRST = f"{RUN}/a/1.1.1.0"


@dataclass
class FakeLink:
    """A link that keeps what it is asked for."""

    starts: list[ExecutionStart] = field(default_factory=list)
    cancels: list[tuple[str, float]] = field(default_factory=list)
    adoptions: list[tuple[str, int]] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    finished: bool = False

    def start(self, start: ExecutionStart) -> None:
        self.starts.append(start)

    def cancel(self, execution_id: str, reason: str, delay: float = 0.0) -> bool:
        self.cancels.append((execution_id, delay))
        return True

    def adopt(self, run_id: str, epoch: int) -> None:
        self.adoptions.append((run_id, epoch))

    def acknowledge(self, execution_id: str) -> None:
        self.acknowledged.append(execution_id)

    def want(self, execution_id: str) -> None: ...
    def unsent(self) -> list[str]:
        return []

    def finish(self) -> None:
        self.finished = True


class FakeNode:
    """A node that answers when the test says so, over one link after another; implements NodeDialer."""

    def __init__(self) -> None:
        self.links: list[FakeLink] = []
        self.held: frozenset[str] = frozenset()
        self.up = asyncio.Event()
        self.address = "x:1"
        """Where it answers, and nowhere else."""
        self._listener: LinkListener | None = None
        self._end: asyncio.Future[FanfoldError] | None = None

    @property
    def link(self) -> FakeLink:
        """The latest link."""
        return self.links[-1]

    @property
    def listener(self) -> LinkListener:
        assert self._listener is not None
        return self._listener

    async def hold_link(self, address: str, listener: LinkListener) -> None:
        await self.up.wait()
        if address != self.address:
            raise Unavailable("nobody there")
        agent = Agent(name="a", description="d", kind=AgentKind.LLM, isolation=Isolation.SHARED, uses_model=True)
        status = NodeStatus(concurrency_hint=4, max_concurrent_steps=4)
        node = Node(name="n", boot_id="b", agents=(agent,), status=status)
        self._listener, self._end = listener, asyncio.get_running_loop().create_future()
        self.links.append(FakeLink())
        listener.welcomed(node, self.link, self.held)
        raise await self._end

    def break_link(self) -> None:
        """Be away until `up` is set."""
        assert self._end is not None
        self.up.clear()
        self._end.set_result(Unavailable("gone"))

    def answer(self, *, running: Sequence[str] = (), ended: Sequence[str] = (), epoch: int = 2) -> None:
        self.held |= {*running, *ended}
        held = RunAdopted(run_id=RUN, epoch=epoch, running=frozenset(running), ended=frozenset(ended))
        self.listener.run_adopted(held)

    def end(self, execution_id: str, usage: Usage = NO_USAGE, code: FailureCode | None = None) -> None:
        failure = None if code is None else StepFailure(code=code, message="m")
        outcome = StepOutcome(task_id="a", agent="a", success=failure is None, failure=failure, attempts=1, usage=usage)
        self.listener.execution_event(execution_id, StepEnded(task_id="a", time=datetime.now(UTC), outcome=outcome))


@dataclass
class Setting:
    node: FakeNode
    nodes: Nodes
    known: KnownNode
    mesh: Mesh

    async def links(self, count: int) -> None:
        """Wait until that many links were made."""
        self.node.up.set()
        async with asyncio.timeout(5):
            while len(self.node.links) < count or not self.known.is_linked():
                await asyncio.sleep(0.001)

    async def no_link(self) -> None:
        self.node.break_link()
        async with asyncio.timeout(5):
            while self.known.is_linked():
                await asyncio.sleep(0.001)


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


def test_an_execution_is_called_by_run_key_epoch_attempt_and_placement() -> None:
    name = ExecutionName(3, 2, 1, "tests/unit 1.5.2", 7)
    assert name.id_in(RUN) == "run-1/tests/unit 1.5.2/3.2.1.7"
    assert ExecutionName.of_id(name.id_in(RUN), RUN) == name


@pytest.mark.parametrize(
    "foreign", ["other/a/1.1.1.0", "run-1/a/1.1.1", "run-1/a/1.1.1.x", "run-1", "run-11/a/1.1.1.0"]
)
def test_what_is_called_otherwise_is_not_ours(foreign: str) -> None:
    assert ExecutionName.of_id(foreign, RUN) is None


def test_a_later_epoch_goes_before_attempts_and_these_before_placements() -> None:
    names = [(1, 1, 2), (1, 2, 1), (2, 1, 1), (2, 1, 10)]
    assert all(ExecutionName(*one, "a") < ExecutionName(*other, "a") for one, other in pairwise(names))


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


def journaled(**fields: object) -> Scope:
    return Scope(run_id=RUN, owner="o", progress=False, epoch=2, receipts=Receipts(), **fields)  # type: ignore[arg-type]


def asked(key: str, max_tokens: int | None = None) -> AgentStepSpec:
    policy = StepPolicy(max_tokens=max_tokens)
    return AgentStepSpec(task_id=key, agent="a", description="d", prompt="p", policy=policy)


def begin(executor: MeshExecutor, key: str = "a", max_tokens: int | None = None) -> asyncio.Task[StepOutcome]:
    spec = asked(key, max_tokens)
    return asyncio.ensure_future(executor.run_step(StepKey.of_spec(0, spec), spec, None))


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


@pytest.mark.contract("C13")
async def test_an_attempt_that_goes_on_has_its_tokens_set_aside_and_is_charged_what_it_tells(setting: Setting) -> None:
    budget = TokenBudget(100, spent=30, steps=1)
    scope = journaled(budget=budget)
    goes_on = ExecutionName(1, 1, 1, "a", work_of(asked("a"))).id_in(RUN)
    adopting_all = asyncio.ensure_future(adopt_run(setting.nodes, scope, ["n"], CERTAINTY))
    await asyncio.sleep(0.01)
    setting.node.answer(running=[goes_on])
    await adopting_all
    executor = setting.mesh.executor(scope)
    step = begin(executor, max_tokens=60)
    other = begin(executor, "b", max_tokens=40)
    await asyncio.sleep(0.01)
    assert setting.node.link.starts == [], "30 were spent and 60 are set aside: 40 do not fit yet"
    setting.node.end(goes_on, Usage(output_tokens=25))
    assert (await step).success
    assert budget.spent == 55
    await asyncio.sleep(0.01)
    (start,) = setting.node.link.starts
    assert start.spec.policy.max_tokens == 40
    setting.node.end(start.execution_id, Usage(output_tokens=40))
    await other
    assert budget.told() == Budget(limit=100, spent=95)


@pytest.mark.contract("C13")
async def test_what_was_stopped_as_its_run_was_given_up_is_charged_what_it_told(setting: Setting) -> None:
    scope = journaled(budget=TokenBudget(100, spent=30))
    adopting_all = asyncio.ensure_future(adopt_run(setting.nodes, scope, ["n"], CERTAINTY))
    await asyncio.sleep(0.01)
    setting.node.answer(ended=[FIRST])
    setting.node.end(FIRST, Usage(output_tokens=25), FailureCode.CANCELLED)
    await adopting_all
    assert scope.adopted == {}
    assert scope.budget is not None
    assert scope.budget.spent == 55


@pytest.mark.contract("C13")
async def test_what_ran_on_a_node_that_nobody_has_heard_of_since_is_charged_whole_and_once(setting: Setting) -> None:
    await setting.no_link()
    budget = TokenBudget(100, steps=1)
    scope = journaled(budget=budget)
    await adopt_run(setting.nodes, scope, ["n"], 0.05)
    assert scope.lost_nodes == {"n"}
    scope.unaccounted.add((0, 0))
    await setting.links(2)
    step = begin(setting.mesh.executor(scope), max_tokens=60)
    outcome = await asyncio.wait_for(step, 5)
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.BUDGET_EXHAUSTED
    assert budget.told() == Budget(limit=100, spent=60, refused_steps=1)


@pytest.mark.contract("C13", "C43")
async def test_a_run_that_is_given_up_leaves_what_goes_on_to_be_charged_by_the_next_holder(setting: Setting) -> None:
    budget = TokenBudget(100, steps=1)
    scope = journaled(budget=budget)
    step = begin(setting.mesh.executor(scope), max_tokens=60)
    await asyncio.sleep(0.01)
    assert len(setting.node.link.starts) == 1
    scope.hold.give_up()
    step.cancel()
    await asyncio.wait({step})
    assert budget.spent == 0


@pytest.mark.contract("C13", "C43")
async def test_what_ends_as_its_run_is_given_up_is_told_and_charged_by_the_next_holder(setting: Setting) -> None:
    budget = TokenBudget(100, steps=1)
    scope = journaled(budget=budget)
    step = begin(setting.mesh.executor(scope), max_tokens=60)
    await asyncio.sleep(0.01)
    (start,) = setting.node.link.starts
    setting.node.end(start.execution_id, Usage(output_tokens=25))
    scope.hold.give_up()  # the step has not heard of its ending yet, nor of this
    with pytest.raises(Aborted, match="another coordinator"):
        await step
    assert budget.spent == 0
    assert scope.receipts is not None
    scope.receipts.settled("a")
    assert setting.node.link.acknowledged == [], "its node keeps the ending for the next holder"


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
