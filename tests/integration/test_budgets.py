"""Budgets over a real mesh, with agents that tell what they spend (C13, F10)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from agents import contract_agents
from coordinator.placement.in_process import InProcessExecutor
from executor_node.app import running as running_node
from executor_node.supervisor.client import Supervision
from fanfold import Mesh, SyncMesh
from fanfold.clients.coordinator import CoordinatorClient, Terms
from fanfold.clients.run_call import RunCall
from fanfold.errors import InvalidArgument
from fanfold.model.pipeline import StageContext
from fanfold.model.run import Budget, BudgetExhausted, RunEnded, RunEvent, RunStepEvent
from fanfold.model.step import FailureCode, StepEnded, StepEvent, StepProgressed, StepStarted, Usage
from fanfold.model.validation import parse_specs
from fanfold.ports import AgentExecutor
from fanfold.schema import SchemaValidator
from support.mesh import RunningMesh, coordinator_alone, node_config, running_mesh, until

pytestmark = [pytest.mark.process, pytest.mark.contract("C13")]

FAST_RETRIES = {"agent_unknown": 0.2, "unplaceable": 0.5, "retry_first": 0.02, "retry_most": 0.1}


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningMesh]:
    async with running_mesh(tmp_path, nodes=2, coordinator={"placement": FAST_RETRIES}) as up:
        yield up


def step(task_id: str, prompt: str, agent: str = "spends", **policy: Any) -> dict[str, Any]:
    return {"task_id": task_id, "agent": agent, "description": "d", "prompt": prompt, "policy": policy}


@pytest.mark.contract("F10")
async def test_parallel_children_and_their_retries_keep_within_one_budget(running: RunningMesh) -> None:
    # Forty children that would like to spend 300 each, half of them three times over: 24,000 in all.
    specs = [
        step(str(n), "100 100 100" if n % 2 else "100 100 100 fail", max_tokens=300, max_attempts=3) for n in range(40)
    ]
    result = await running.mesh.parallel(specs, budget_tokens=15_000)
    assert result.budget is not None
    assert result.budget.spent == sum(outcome.usage.tokens for outcome in result)
    assert 14_700 < result.budget.spent <= 15_000, "nearly all of it is used, and no more"
    refused = [o for o in result if o.failure and o.failure.code is FailureCode.BUDGET_EXHAUSTED]
    assert result.budget.refused_steps == len(refused) > 0
    for outcome in refused:
        assert outcome.usage.tokens == 300 * outcome.attempts
    assert max(outcome.attempts for outcome in result) > 1
    assert any(outcome.success for outcome in result)


async def test_without_caps_of_their_own_steps_share_the_budget_evenly(running: RunningMesh) -> None:
    result = await running.mesh.parallel([step(str(n), "60 40") for n in range(10)], budget_tokens=1009)
    assert [outcome.output for outcome in result] == ["100 of 100"] * 10
    assert result.budget == Budget(limit=1009, spent=1000)


async def test_an_agent_that_heeds_no_cap_overshoots_by_one_call(running: RunningMesh) -> None:
    result = await running.mesh.parallel([step(str(n), "80 80 80 80") for n in range(10)], budget_tokens=1000)
    codes = [outcome.failure and outcome.failure.code for outcome in result]
    assert codes == [FailureCode.BUDGET_EXHAUSTED] * 10
    stopped = [outcome for outcome in result if outcome.attempts]
    assert {outcome.usage.tokens for outcome in stopped} == {160}
    assert result.budget is not None
    assert result.budget.spent == 160 * len(stopped) <= 1000 + 80 * len(stopped)
    assert result.budget.refused_steps == 10 - len(stopped)


async def test_what_is_unspent_goes_to_those_that_wait(running: RunningMesh) -> None:
    # Only one fits at a time, and each leaves nearly all of it.
    result = await running.mesh.parallel([step(str(n), "10", max_tokens=900) for n in range(10)], budget_tokens=1000)
    assert [outcome.output for outcome in result] == ["10 of 900"] * 10
    assert result.budget == Budget(limit=1000, spent=100)


async def test_0_refuses_every_step_that_would_spend_and_no_other(running: RunningMesh) -> None:
    heard: list[StepEvent] = []
    specs = [step("a", "10"), step("b", "x", "noop"), step("c", "10", max_tokens=5), step("d", "x", "echo")]
    result = await running.mesh.parallel(specs, budget_tokens=0, on_event=heard.append)
    assert [outcome.success for outcome in result] == [False, True, False, True]
    assert result.budget == Budget(limit=0, spent=0, refused_steps=2)
    refused = result[2]
    assert refused.failure is not None
    assert refused.failure.code is FailureCode.BUDGET_EXHAUSTED
    assert refused.failure.message == "it may spend 5 tokens, and 0 of the budget of 0 are left"
    assert not refused.failure.retryable
    assert (refused.attempts, refused.node, refused.usage, refused.started_at) == (0, "", Usage(), None)
    told = [event for event in heard if event.task_id == "c"]
    assert [type(event) for event in told] == [StepStarted, StepEnded], "its life is told in order all the same"


async def test_an_agent_that_is_said_to_use_no_model_but_spends_is_charged_for_it(running: RunningMesh) -> None:
    specs = [step("a", "x", "tells"), step("b", "50", max_tokens=74)]
    first = await running.mesh.parallel(specs[:1], budget_tokens=100)
    assert first.budget == Budget(limit=100, spent=27)
    both = await running.mesh.parallel(specs, budget_tokens=100)
    assert both.budget is not None
    assert both.budget.spent == 77


@pytest.mark.contract("C3")
async def test_a_retry_for_which_there_is_no_room_ends_the_step_and_keeps_what_it_came_to(running: RunningMesh) -> None:
    (outcome,) = await running.mesh.parallel([step("a", "60 fail", max_tokens=100, max_attempts=5)], budget_tokens=150)
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.BUDGET_EXHAUSTED
    assert outcome.failure.message == (
        "it may spend 100 tokens, and 90 of the budget of 150 are left; the attempt before ended AGENT_FAILED: no luck"
    )
    assert (outcome.attempts, outcome.usage) == (1, Usage(input_tokens=60, requests=1))
    assert outcome.node
    assert outcome.session_id


async def test_a_step_that_waits_for_tokens_holds_no_place_on_a_node(tmp_path: Path) -> None:
    capacity = {"concurrency_hint": 4, "max_concurrent_steps": 2}
    async with running_mesh(tmp_path, node={"capacity": capacity}) as running:
        specs = [step(str(n), "wait 10", max_tokens=100) for n in range(4)]
        run = asyncio.ensure_future(running.mesh.parallel(specs, budget_tokens=100))
        await until_in_flight(running, 1)
        others = await asyncio.wait_for(running.mesh.parallel([step(str(n), "x", "noop") for n in range(50)]), 15)
        assert all(outcome.success for outcome in others)
        assert [view.steps_in_flight for view in await running.mesh.nodes()] == [1]
        (tmp_path / "go").touch()
        result = await run
    # One after the other: 10 of 100, then 100 do not fit any more.
    assert sorted(outcome.success for outcome in result) == [False, False, False, True]
    assert result.budget == Budget(limit=100, spent=10, refused_steps=3)


async def test_a_cancelled_run_leaves_the_next_one_alone(running: RunningMesh) -> None:
    run = asyncio.ensure_future(running.mesh.parallel([step("a", "wait"), step("b", "wait")], budget_tokens=10))
    await until_in_flight(running, 2)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    result = await running.mesh.parallel([step("a", "5"), step("b", "5")], budget_tokens=10)
    assert result.budget == Budget(limit=10, spent=10)


@pytest.mark.contract("C43")
async def test_what_a_stopping_node_hands_back_is_charged_and_runs_on_elsewhere(tmp_path: Path) -> None:
    turns: list[StepEvent] = []

    def listen(event: StepEvent) -> None:
        if isinstance(event, StepProgressed):
            turns.append(event)

    async with running_mesh(tmp_path, nodes=2, coordinator={"placement": FAST_RETRIES}) as running:
        specs = [step("a", "50 wait 20", max_tokens=100, max_attempts=1)]
        run = asyncio.ensure_future(running.mesh.parallel(specs, budget_tokens=160, on_event=listen))
        await until(lambda: len(turns) == 1, "it made its first call")
        (busy,) = [view.node.name for view in await running.mesh.nodes() if view.steps_in_flight]
        await running.nodes[int(busy.removeprefix("node-")) - 1].drain(0.1)
        await until(lambda: len(turns) == 2, "it made it again, on the other node")
        (tmp_path / "go").touch()
        result = await run
    assert result[0].success, result[0].failure
    assert (result[0].attempts, result[0].usage) == (1, Usage(input_tokens=120, requests=3))
    assert result.budget == Budget(limit=160, spent=120)


async def test_an_agent_that_no_node_has_told_of_is_waited_for_and_not_guessed(tmp_path: Path) -> None:
    placement = {"agent_unknown": 0.2, "unplaceable": 20}
    async with AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(coordinator_alone(placement=placement))
        mesh = await stack.enter_async_context(Mesh(coordinator.address))
        run = asyncio.ensure_future(mesh.parallel([step("a", "x", "noop"), step("b", "1")], budget_tokens=0))
        config = node_config(tmp_path, "node-1", coordinator.address, {})
        await stack.enter_async_context(running_node(config, Supervision.spawn({"PATH": "/usr/bin:/bin"}), {}))
        result = await asyncio.wait_for(run, 20)
        assert [outcome.success for outcome in result] == [True, False]
        assert result.budget == Budget(limit=0, refused_steps=1)
        (unknown,) = await mesh.parallel([step("c", "x", "nobody")], budget_tokens=0)
        assert unknown.failure is not None
        assert unknown.failure.code is FailureCode.AGENT_UNKNOWN


@pytest.mark.contract("C14")
async def test_a_pipeline_has_one_budget_for_all_stages_of_all_items(running: RunningMesh) -> None:
    def survey(ctx: StageContext) -> dict[str, Any]:
        return step("survey", ctx.item)

    def review(ctx: StageContext) -> dict[str, Any]:
        return step("review", "30", max_tokens=100)

    # Two stages of three items: without a cap of its own a step has a sixth of the 600.
    result = await running.mesh.pipeline(["50", "100", "150"], [survey, review], budget_tokens=600)
    first, second, third = result
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.output, second.output) == ("30 of 100", "30 of 100")
    assert third.failure is not None
    assert third.failure.message == "it spent 150 of the 100 tokens it may"
    assert result.budget == Budget(limit=600, spent=50 + 30 + 100 + 30 + 150)
    refused = await running.mesh.pipeline(["0"], [review], budget_tokens=99)
    assert refused.budget == Budget(limit=99, refused_steps=1)


# How it is told.


async def test_spending_is_told_with_each_end_and_exhaustion_once(running: RunningMesh) -> None:
    specs = parse_specs([step(str(n), "60", max_tokens=60) for n in range(5)])
    async with CoordinatorClient(running.coordinator.address) as client:
        events = await all_of(client.parallel(specs, Terms(budget_tokens=130)))
        unbounded = await all_of(client.parallel(specs))
    exhausted = [event for event in events if isinstance(event, BudgetExhausted)]
    assert len(exhausted) == 1
    assert exhausted[0].budget.refused_steps == 1
    spent = [event.budget_spent for event in events if isinstance(event, RunStepEvent)]
    assert spent == sorted(spent, key=lambda tokens: tokens or 0)
    assert set(spent) <= {0, 60, 120}
    assert spent[-1] == 120
    assert isinstance(events[-1], RunEnded)
    assert events[-1].run.budget == Budget(limit=130, spent=120, refused_steps=3)
    assert {event.budget_spent for event in unbounded if isinstance(event, RunStepEvent)} == {None}
    assert isinstance(unbounded[-1], RunEnded)
    assert unbounded[-1].run.budget is None


async def test_a_run_object_knows_its_budget_while_it_goes_on(running: RunningMesh) -> None:
    run = running.mesh.parallel([step(str(n), "60", max_tokens=60) for n in range(3)], budget_tokens=500)
    assert run.budget == Budget(limit=500)
    seen = [run.budget.spent async for event in run if isinstance(event, StepEnded) and run.budget]
    assert sorted(seen) == seen
    assert seen[-1] == 180
    assert run.result.budget == run.budget == Budget(limit=500, spent=180)
    assert running.mesh.parallel([]).budget is None


async def test_ordinary_code_has_budgets_too(running: RunningMesh) -> None:
    def work() -> Budget | None:
        with SyncMesh(running.coordinator.address) as mesh:
            return mesh.parallel([step("a", "7")], budget_tokens=50).budget

    assert await asyncio.to_thread(work) == Budget(limit=50, spent=7)


@pytest.mark.contract("C41")
@pytest.mark.parametrize("wrong", [-1, 2**63, 1.5, "10", True])
async def test_a_budget_that_is_no_number_of_tokens_is_refused(running: RunningMesh, wrong: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await running.mesh.parallel([step("a", "7")], budget_tokens=wrong)
    assert caught.value.violations[0].field == "budget_tokens"


@pytest.mark.contract("C41")
async def test_a_budget_larger_than_any_is_refused_by_the_coordinator_too(running: RunningMesh) -> None:
    async with CoordinatorClient(running.coordinator.address) as client:
        with pytest.raises(InvalidArgument) as caught:
            await all_of(client.parallel([], Terms(budget_tokens=2**63)))
    assert caught.value.violations[0].field == "open.budget_tokens"


# Over a host's own executor.


def foreign_executor() -> AgentExecutor:
    """What a coordinator's setting `executor` names in the test below."""
    return InProcessExecutor({"spends": contract_agents.spends}, SchemaValidator())


@pytest.mark.contract("C8")
async def test_budgets_hold_over_an_executor_that_knows_of_none() -> None:
    async with (
        coordinator_alone(executor=f"{__name__}:foreign_executor") as coordinator,
        Mesh(coordinator.address) as mesh,
    ):
        specs = [step(str(n), "60", max_tokens=60) for n in range(5)]
        result = await mesh.parallel(specs, budget_tokens=130)
    assert result.budget == Budget(limit=130, spent=120, refused_steps=3)
    assert sorted(outcome.output for outcome in result) == ["", "", "", "60 of 60", "60 of 60"]


async def all_of(call: RunCall) -> list[RunEvent]:
    events: list[RunEvent] = []
    while more := await call.read():
        events += more
    return events


async def until_in_flight(running: RunningMesh, count: int) -> None:
    async with asyncio.timeout(20):
        while sum(view.steps_in_flight for view in await running.mesh.nodes()) != count:
            await asyncio.sleep(0.01)
