"""What the services tell is what they declare, and what Prometheus makes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import coordinator.metrics
import executor_node.metrics
import fanfold.rpc.metrics
import fanfold.sql.metrics
import job_registry.metrics
from fanfold import Mesh
from fanfold.cli.embedded import EmbeddedMesh, Plan
from fanfold.measures import Measure
from support.prometheus import prometheus, promtool
from support.scrapes import Scrape, names_of, scrape, until_told
from tools.metrics import measures_of

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]

EVERY = (fanfold.rpc.metrics, fanfold.sql.metrics)
DECLARED: Mapping[str, Sequence[Measure]] = {
    "coordinator": [each for module in (*EVERY, coordinator.metrics) for each in measures_of(module)],
    "node": [each for module in (fanfold.rpc.metrics, executor_node.metrics) for each in measures_of(module)],
    "registry": [each for module in (*EVERY, job_registry.metrics) for each in measures_of(module)],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def at(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mapping[str, str]]:
    """Where a coordinator, a node and a registry tell their metrics that have had something to do."""
    folder = tmp_path_factory.mktemp("metrics")
    plan = Plan(data_dir=folder / "data", workspace=folder, nodes=1, shell=True)
    async with EmbeddedMesh(plan) as up, Mesh(up.server, registry=up.registry) as mesh:
        fine: dict[str, Any] = {"agent": "shell", "description": "d", "prompt": "echo done"}
        steps = [{**fine, "task_id": str(number)} for number in range(10)]
        await mesh.parallel([*steps, {**fine, "task_id": "wrong", "prompt": "exit 3"}])
        await mesh.parallel_resumable(steps, "audit")
        started = await mesh.start(steps)
        assert all(outcome.success for outcome in await started.result())
        named = {"coordinator": up.services[0], "node": up.services[1], "registry": up.services[2]}
        yield {name: service.metrics for name, service in named.items()}


@pytest.mark.parametrize("service", DECLARED)
async def test_a_service_tells_all_that_it_declares_and_nothing_else(at: Mapping[str, str], service: str) -> None:
    told = await scrape(at[service])
    assert names_of(told.families) == {each.name for each in DECLARED[service]}
    for measure in DECLARED[service]:
        samples = _samples(told, measure)
        labels = {name for sample in samples for name in sample.labels} - {"le"}
        assert labels <= set(measure.labels), measure.name
        for name, values in measure.labels.items():
            if not isinstance(values, str):
                assert {sample.labels[name] for sample in samples} == set(values), measure.name


@pytest.mark.parametrize("service", DECLARED)
async def test_promtool_finds_nothing_wrong_with_what_a_service_tells(at: Mapping[str, str], service: str) -> None:
    told = await scrape(at[service])
    assert await promtool("check", "metrics", stdin=told.text) == (0, "")


async def test_promtool_would_find_what_is_wrong() -> None:
    code, said = await promtool("check", "metrics", stdin="# TYPE steps counter\nsteps 1\n")
    assert code != 0
    assert "_total" in said


async def test_a_prometheus_scrapes_all_three_services_and_answers_questions_about_them(
    at: Mapping[str, str], tmp_path: Path
) -> None:
    await until_told(at["coordinator"], "fanfold_coordinator_runs_ended_total", 3)
    await until_told(at["registry"], "fanfold_registry_jobs_settled_total", 1)
    async with prometheus(tmp_path, {name: [address] for name, address in at.items()}) as server:
        await server.until_holds("sum(up) == 3")
        expected = {
            'sum(fanfold_coordinator_steps_ended_total{agent="shell",code="OK"})': 30,
            'sum(fanfold_node_steps_ended_total{agent="shell",code="AGENT_FAILED"})': 1,
            'sum(fanfold_coordinator_runs_ended_total{kind="parallel",state="completed"})': 3,
            "sum(fanfold_coordinator_run_duration_seconds_count)": 3,
            'sum(fanfold_coordinator_placements_total{result="ended"})': 31,
            'sum(fanfold_coordinator_queue_wait_seconds_count{result="placed"})': 31,
            'sum(fanfold_coordinator_lease_changes_total{change="accepted"})': 2,
            'fanfold_coordinator_nodes{state="ready"}': 1,
            'sum(fanfold_registry_jobs_settled_total{kind="parallel",state="completed"})': 1,
            "count(fanfold_build_info)": 3,
            "count(process_start_time_seconds > 0)": 3,
        }
        for expression, value in expected.items():
            assert [each.value for each in await server.query(expression)] == [value], expression
        for expression in (
            "fanfold_coordinator_journal_append_duration_seconds_count > 0",
            "fanfold_coordinator_journal_append_events_sum > 40",
            "sum(fanfold_database_transaction_operations_count) by (job) > 0",
            "histogram_quantile(0.9, sum by (le) (fanfold_coordinator_step_duration_seconds_bucket)) > 0",
            'fanfold_rpc_handled_total{grpc_method="StartRun",code="OK"} == 1',
        ):
            assert await server.query(expression), expression


def _samples(told: Scrape, measure: Measure) -> Sequence[Any]:
    name = measure.name.removesuffix("_total")
    return next(family.samples for family in told.families if family.name in {name, measure.name})
