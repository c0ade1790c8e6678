"""What adopted and lost attempts are charged, once and by one holder (C13, C19)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from coordinator.budget import TokenBudget
from coordinator.combinators.runner import StepKey
from coordinator.journal.journal import JournalFailed
from coordinator.placement.adoption import adopt_run
from coordinator.placement.execution import ExecutionName, work_of
from coordinator.placement.mesh import Mesh
from coordinator.placement.node import Leases
from coordinator.placement.nodes import Nodes
from coordinator.placement.queue import Patience, PlacementQueue
from fanfold.errors import Aborted
from fanfold.measures import OTHER
from fanfold.model.run import Budget
from fanfold.model.step import FailureCode, Usage
from fanfold.schema import SchemaValidator
from support.adoption import CERTAINTY, FIRST, LEASE, RUN, FakeNode, Setting, asked, begin, journaled
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


class Held(SchemaValidator):
    """Finds every value valid, once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may = asyncio.Event(), asyncio.Event()

    async def validate(self, _schema: object, _value: object, *, owner: str = "") -> str | None:
        self.asked.set()
        await self.may.wait()
        return None


@pytest.mark.contract("C13", "C20", "C43")
@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_what_is_validated_as_its_run_is_given_up_is_charged_by_the_next_holder(
    setting: Setting, is_cancelled: bool
) -> None:
    budget, validator = TokenBudget(100, steps=1), Held()
    scope = journaled(budget=budget)
    executor = Mesh(setting.nodes, setting.mesh.queue, validator).executor(scope)
    spec = replace(asked("a", 60), output_schema={})
    step = asyncio.create_task(executor.run_step(StepKey.of_spec(0, spec), spec, None))
    async with asyncio.timeout(20):
        while not setting.node.link.starts:
            await asyncio.sleep(0.01)
        setting.node.end(setting.node.link.starts[0].execution_id, Usage(output_tokens=25))
        await validator.asked.wait()
        scope.hold.give_up()
        if is_cancelled:
            step.cancel()
        else:
            validator.may.set()
        with pytest.raises(asyncio.CancelledError if is_cancelled else Aborted):
            await step
    assert (budget.spent, budget.reserved) == (0, 0)
    assert setting.node.link.acknowledged == [], "its node keeps the ending for the next holder"


@pytest.mark.contract("C13", "C20")
async def test_what_is_validated_is_charged_once_it_is_told(setting: Setting) -> None:
    budget, validator = TokenBudget(100, steps=1), Held()
    executor = Mesh(setting.nodes, setting.mesh.queue, validator).executor(journaled(budget=budget))
    spec = replace(asked("a", 60), output_schema={})
    step = asyncio.create_task(executor.run_step(StepKey.of_spec(0, spec), spec, None))
    async with asyncio.timeout(20):
        while not setting.node.link.starts:
            await asyncio.sleep(0.01)
        setting.node.end(setting.node.link.starts[0].execution_id, Usage(output_tokens=25))
        await validator.asked.wait()
        assert budget.spent == 0
        validator.may.set()
        assert (await step).success
    assert (budget.spent, budget.reserved) == (25, 0)


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


def patient(setting: Setting) -> Mesh:
    """A mesh whose steps wait for a quota."""
    return Mesh(setting.nodes, PlacementQueue(setting.nodes, Patience(quota=60.0)), setting.mesh.validator)


@pytest.mark.contract("C13", "F8")
async def test_while_a_step_waits_for_a_quota_its_node_keeps_nothing_that_is_charged_already(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.placement.quota.full_jitter", lambda *_, **__: 60.0)
    budget = TokenBudget(100, steps=1)
    scope = journaled(budget=budget)
    step = begin(patient(setting).executor(scope), max_tokens=60)
    await until(lambda: bool(setting.node.link.starts), "it is placed")
    (start,) = setting.node.link.starts
    setting.node.end(start.execution_id, Usage(output_tokens=25), FailureCode.QUOTA_EXHAUSTED)
    await until(lambda: scope.waiting.summary() == "a quota: m", "it waits for a quota")
    assert budget.spent == 25
    assert setting.node.link.acknowledged == [start.execution_id], "the next holder would charge it again"
    step.cancel()
    await asyncio.wait({step})


@pytest.mark.contract("C13", "C24", "F8")
async def test_an_attempt_that_found_no_quota_as_its_run_moved_waits_for_one_at_the_next_holder(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.placement.quota.full_jitter", lambda *_, **__: 0.0)
    budget = TokenBudget(100, steps=1)
    scope = journaled(budget=budget)
    found_none = ExecutionName(1, 1, 1, "a", work_of(asked("a"))).id_in(RUN)
    adopting_all = asyncio.ensure_future(adopt_run(setting.nodes, scope, ["n"], 20.0))
    await until(lambda: bool(setting.node.link.adoptions), "the node is asked")
    setting.node.answer(ended=[found_none])
    setting.node.end(found_none, Usage(output_tokens=25), FailureCode.QUOTA_EXHAUSTED)
    await adopting_all
    step = begin(patient(setting).executor(scope), max_tokens=60)
    await until(lambda: bool(setting.known.standing.held_back), "others are held back, too")
    assert (budget.spent, setting.node.link.acknowledged) == (25, [found_none])
    setting.node.listener.status_changed(setting.known.standing.node.status)
    await until(lambda: bool(setting.node.link.starts), "it is placed again")
    (start,) = setting.node.link.starts
    setting.node.end(start.execution_id, Usage(output_tokens=10))
    outcome = await asyncio.wait_for(step, 20)
    assert (outcome.success, outcome.usage.tokens, outcome.attempts) == (True, 35, 1)
    assert (budget.spent, budget.reserved) == (35, 0)


@pytest.mark.contract("C43")
@pytest.mark.parametrize(
    ("error", "counted"),
    [(Aborted("it has moved"), {}), (JournalFailed(), {}), (RuntimeError("a fault"), {(OTHER, "INTERNAL"): 1})],
)
async def test_a_step_that_goes_on_elsewhere_has_not_ended_and_one_that_met_a_fault_was_not_cancelled(
    setting: Setting, error: Exception, counted: dict[tuple[str, str], int]
) -> None:
    async def use_node(_node: str) -> None:
        raise error

    with pytest.raises(type(error)):
        await begin(setting.mesh.executor(journaled(use_node=use_node)))
    assert setting.mesh.counts.ended == counted
