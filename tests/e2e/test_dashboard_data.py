"""Every expression of the dashboards is answered with data, by a Prometheus that scrapes a mesh at work."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fanfold import Mesh
from fanfold.cli.embedded import EmbeddedMesh, Plan
from support.mesh import AGENTS, coordinator_alone
from support.monitoring import ALERTS, expressions, pages
from support.prometheus import Prometheus, prometheus
from support.secured import Keyring

ANSWERED_SECONDS = 90.0

pytestmark = pytest.mark.process


def step(task_id: str, agent: str, prompt: str = "x", **policy: Any) -> dict[str, Any]:
    return {"task_id": task_id, "agent": agent, "description": "works", "prompt": prompt, "policy": policy}


async def work_on(mesh: Mesh) -> None:
    """Have everything happen that dashboards tell of, again and again."""
    await mesh.start([step("waits", "waits", "600")])  # a job that is there all the time
    number = 0
    while True:
        number += 1
        fan_out = [
            step("succeeds", "echo"),
            step("spends", "spends", "30 60"),
            step("fails", "crashes"),
            step("tries again", "gives-up", max_attempts=2),
            step("lacks", "lacks-quota"),
        ]
        await mesh.parallel_resumable(fan_out, f"workflow-{number}")
        await mesh.parallel([step("refused", "spends", "30", max_tokens=100)], budget_tokens=10)
        started = await mesh.start([step("succeeds", "echo")])
        await started.wait()


@asynccontextmanager
async def mesh_at_work(folder: Path) -> AsyncIterator[Prometheus]:
    """All three services as processes, busy, a coordinator that shows a certificate, and who scrapes them."""
    async with AsyncExitStack() as stack:
        plan = Plan(data_dir=folder / "data", workspace=folder, agents=AGENTS, nodes=1)
        embedded = await stack.enter_async_context(EmbeddedMesh(plan))
        secured = await stack.enter_async_context(coordinator_alone(**Keyring(folder / "keys").settings()))
        targets = {service.name: [service.metrics] for service in embedded.services}
        targets["secured"] = [str(secured.metrics)]
        server = await stack.enter_async_context(prometheus(folder, targets, ALERTS))
        mesh = await stack.enter_async_context(Mesh(embedded.server, registry=embedded.registry))
        work = asyncio.create_task(work_on(mesh))
        try:
            yield server
            assert not work.done(), work
        finally:
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work


@pytest.mark.timeout(240)
async def test_every_expression_of_the_dashboards_is_answered_with_data(tmp_path: Path) -> None:
    waiting = dict(expressions())
    for name, page in pages().items():
        for variable in page["templating"]["list"]:
            if variable["type"] == "query":
                waiting[f"{name}: ${variable['name']}"] = variable["query"]["query"][len("label_values(") :].split(",")[
                    0
                ]
    async with mesh_at_work(tmp_path) as server:
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWERED_SECONDS):
                while waiting:
                    for where, expression in list(waiting.items()):
                        if any(not math.isnan(sample.value) for sample in await server.query(expression)):
                            del waiting[where]
                    await asyncio.sleep(0.5)
    assert waiting == {}
