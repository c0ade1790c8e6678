"""What coordinator and node tell of steps, over a real mesh."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fanfold.background import background
from fanfold.model.step import FailureCode
from support.mesh import running_mesh
from support.scrapes import until_told

pytestmark = pytest.mark.process

FINE: dict[str, Any] = {"task_id": "fine", "agent": "shell", "description": "d", "prompt": "echo done"}
WRONG: dict[str, Any] = {"task_id": "wrong", "agent": "shell", "description": "d", "prompt": "exit 3"}


async def test_a_node_counts_what_it_has_run_by_agent_and_code(tmp_path: Path) -> None:
    async with running_mesh(tmp_path) as running:
        outcomes = await running.mesh.parallel([FINE, WRONG, {**FINE, "task_id": "also"}])
        assert [outcome.success for outcome in outcomes] == [True, False, True]
        at = str(running.nodes[0].metrics)
        told = await until_told(at, "fanfold_node_steps_ended_total", 3)
        assert told.value("fanfold_node_steps_ended_total", agent="shell", code="OK") == 2
        assert told.value("fanfold_node_steps_ended_total", agent="shell", code="AGENT_FAILED") == 1
        assert told.value("fanfold_node_step_duration_seconds_count", agent="shell") == 3
        assert told.value("fanfold_node_running_steps") == 0
        assert told.value("fanfold_node_coordinators") == 1
        assert told.total("fanfold_node_link_batch_elements_sum", direction="received") >= 3
        assert told.total("fanfold_node_link_batch_elements_sum", direction="sent") >= 3
        assert told.value("fanfold_node_steps_refused_total", reason="draining") == 0


@pytest.mark.contract("C13")
@pytest.mark.parametrize("is_journaled", [False, True])
async def test_a_budget_that_runs_out_is_counted_at_once_and_its_run_once(tmp_path: Path, is_journaled: bool) -> None:
    go_on = tmp_path / "go-on"
    async with running_mesh(tmp_path, coordinator={"journal": {"path": str(tmp_path / "journal.db")}}) as running:
        waits = {**FINE, "prompt": f"until [ -e {go_on} ]; do sleep 0.1; done"}
        refused = {**FINE, "agent": "spends", "policy": {"max_tokens": 100}}
        steps = [waits, *({**refused, "task_id": f"refused-{number}"} for number in range(2))]
        at = str(running.coordinator.metrics)
        mesh = running.mesh
        parallel = partial(mesh.parallel_resumable, workflow_id="budget") if is_journaled else mesh.parallel
        run = parallel(steps, budget_tokens=50)

        async def follow() -> None:
            await run

        async with background(follow()):
            told = await until_told(at, "fanfold_coordinator_budgets_exhausted_total", 1)
            assert told.total("fanfold_coordinator_runs_ended_total") == 0
            go_on.touch()
            told = await until_told(at, "fanfold_coordinator_runs_ended_total", 1)
        assert told.total("fanfold_coordinator_budgets_exhausted_total") == 1


@pytest.mark.contract("C6", "C13")
async def test_a_coordinator_counts_tokens_retries_and_what_a_budget_refuses(tmp_path: Path) -> None:
    placement = {"retry_first": 0.02, "retry_most": 0.1}
    async with running_mesh(tmp_path, coordinator={"placement": placement}) as running:
        spends = {**FINE, "agent": "spends", "policy": {"max_tokens": 100, "max_attempts": 2}}
        steps = [{**spends, "task_id": str(n), "prompt": "60 fail"} for n in range(5)]
        result = await running.mesh.parallel(steps, budget_tokens=250)
        assert result.budget is not None
        assert result.budget.refused_steps > 0
        told = await until_told(str(running.coordinator.metrics), "fanfold_coordinator_budgets_exhausted_total", 1)
        assert told.value("fanfold_coordinator_tokens_total", agent="spends", direction="input") == result.budget.spent
        assert told.value("fanfold_coordinator_tokens_total", agent="spends", direction="output") == 0
        models = sum(outcome.usage.requests for outcome in result)
        assert told.value("fanfold_coordinator_model_requests_total", agent="spends") == models
        refused = sum(outcome.attempts == 0 for outcome in result)
        assert told.total("fanfold_coordinator_budget_refused_steps_total") == refused
        further = sum(outcome.attempts - 1 for outcome in result if outcome.attempts)
        assert told.total("fanfold_coordinator_step_retries_total", code="AGENT_FAILED") >= further
        assert told.total("fanfold_coordinator_steps_ended_total") == len(steps)
        assert told.value("fanfold_node_tokens_total", agent="spends", direction="input") is None
        at_node = await until_told(str(running.nodes[0].metrics), "fanfold_node_tokens_total", result.budget.spent)
        assert at_node.value("fanfold_node_tokens_total", agent="spends", direction="input") == result.budget.spent


@pytest.mark.contract("C42")
async def test_a_run_that_waits_is_told_by_what_and_for_how_long_until_it_is_cancelled(tmp_path: Path) -> None:
    capacity = {"concurrency_hint": 1, "max_concurrent_steps": 1}
    async with running_mesh(tmp_path, node={"capacity": capacity}, coordinator={"placement": {}}) as running:
        at = str(running.coordinator.metrics)
        nothing = await until_told(at, "fanfold_coordinator_nodes", 1, state="ready")
        assert nothing.value("fanfold_coordinator_runs_waiting", on="place") == 0
        first = asyncio.create_task(_awaited(running.mesh.parallel([{**FINE, "prompt": "sleep 600"}])))
        await until_told(at, "fanfold_coordinator_node_steps_in_flight", 1, node="node-1")
        second = asyncio.create_task(_awaited(running.mesh.parallel([FINE])))
        told = await until_told(at, "fanfold_coordinator_runs_waiting", 1, on="place")
        assert told.value("fanfold_coordinator_runs", kind="parallel", state="running") == 2
        assert told.value("fanfold_coordinator_steps_waiting") == 1
        assert told.value("fanfold_coordinator_node_load_ratio", node="node-1") == 1
        assert told.value("fanfold_coordinator_node_concurrency_hint", node="node-1") == 1
        longest = told.value("fanfold_coordinator_longest_wait_seconds", on="place")
        assert longest is not None
        await until_told(at, "fanfold_coordinator_longest_wait_seconds", longest + 0.2, on="place")
        for run in (second, first):
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
        ended = await until_told(at, "fanfold_coordinator_runs_ended_total", 2, kind="parallel", state="cancelled")
        assert ended.value("fanfold_coordinator_runs_waiting", on="place") == 0
        assert ended.value("fanfold_coordinator_longest_wait_seconds", on="place") == 0
        assert ended.total("fanfold_coordinator_steps_ended_total", code="CANCELLED") == 2


@pytest.mark.contract("C3")
async def test_agents_that_callers_make_up_share_one_label(tmp_path: Path) -> None:
    async with running_mesh(tmp_path, coordinator={"placement": {"agent_unknown": 0.2}}) as running:
        steps = [{**FINE, "task_id": str(n), "agent": f"made-up-{n}"} for n in range(3)]
        outcomes = await running.mesh.parallel(steps)
        assert {outcome.failure.code for outcome in outcomes if outcome.failure} == {FailureCode.AGENT_UNKNOWN}
        told = await until_told(str(running.coordinator.metrics), "fanfold_coordinator_runs_ended_total", 1)
        assert told.value("fanfold_coordinator_steps_ended_total", agent="other", code="AGENT_UNKNOWN") == 3
        assert told.value("fanfold_coordinator_queue_wait_seconds_count", result="refused") == 3
        assert "made-up" not in told.text


@pytest.mark.contract("C28")
async def test_scripts_are_counted_as_runs_of_their_kind(tmp_path: Path) -> None:
    async with running_mesh(tmp_path) as running:
        meta = {"name": "a-test", "description": "for tests"}
        for script in ("return await agent('echo hi', {agent: 'shell'})", "throw new Error('on purpose')"):
            async with running.mesh.workflow(script, meta=meta) as run:
                await run.result()
        at = str(running.coordinator.metrics)
        told = await until_told(at, "fanfold_coordinator_runs_ended_total", 2, kind="script")
        assert told.value("fanfold_coordinator_runs_ended_total", kind="script", state="completed") == 1
        assert told.value("fanfold_coordinator_runs_ended_total", kind="script", state="failed") == 1
        assert told.value("fanfold_coordinator_steps_ended_total", agent="shell", code="OK") == 1
        await until_told(at, "fanfold_coordinator_script_processes", 1, state="spare")
        assert told.value("fanfold_coordinator_script_processes", state="running") == 0


async def _awaited(run: Any) -> Any:
    return await run
