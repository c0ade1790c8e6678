"""A mesh of processes that sends its traces, of which one coordinator is killed in the middle of a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from fanfold import Mesh
from fanfold.cli.child import Child
from fanfold.model.step import AgentStepSpec
from support.coordinators import PATIENCE, Coordinators, coordinators
from support.mesh import AGENTS, ANY_PORT, until, until_ready
from support.otlp import SentSpan, otlp_receiver

pytestmark = pytest.mark.process

RUN = "invoke_workflow parallel"
LEASES = {"lease": 10.0, "lease_grace": 2.0, "lease_margin": 0.5}


@asynccontextmanager
async def node(folder: Path, up: Coordinators, settings: Mapping[str, Any]) -> AsyncIterator[Child]:
    """A node, as the processes that it is, that all coordinators have found."""
    file = folder / "node.yaml"
    own = {
        "name": "node-1",
        "listen": ANY_PORT,
        "metrics_listen": ANY_PORT,
        "announce_to": [child.address for child in up.children],
        "workspace": str(up.workspace),
        "agents": {"directory": str(AGENTS), "shell": True},
        "exit_with_parent": True,
        "drain_grace": 2.0,
    }
    file.write_text(yaml.safe_dump(own | dict(settings)))
    child = await Child.start("node-1", ["executor-node", "--config", str(file)], log=folder / "node.log")
    try:
        await child.wait_until_ready()
        for coordinator in up.children:
            async with Mesh(coordinator.address) as mesh:
                await until_ready(mesh, 1)
        yield child
    finally:
        await child.stop(10.0)


def slow(task_id: str) -> AgentStepSpec:
    """A step that notes its start and waits for a file."""
    command = f"echo {task_id} >> lines; while [ ! -e go ]; do sleep 0.05; done; echo did-{task_id}"
    return AgentStepSpec(task_id=task_id, agent="shell", description="d", prompt=command)


@pytest.mark.contract("C19")
async def test_a_killed_coordinators_run_goes_on_in_its_first_trace(tmp_path: Path) -> None:
    async with otlp_receiver() as receiver:
        header = tmp_path / "header"
        header.write_text("Bearer of-the-collector")
        shown = {"authorization": str(header)}
        traces: dict[str, Any] = {"traces": {"endpoint": receiver.endpoint, "header_files": shown}}
        async with (
            coordinators(tmp_path, nodes=0, leases=LEASES, placement=PATIENCE, **traces) as up,
            node(tmp_path, up, traces),
            Mesh(up.servers) as mesh,
        ):
            run = asyncio.ensure_future(_result(mesh))
            first = up.of("c1")
            lines = up.workspace / "lines"
            await until(lambda: lines.exists() and len(lines.read_text().split()) == 2, "both steps run")
            await receiver.until_named("step echo")  # told by whoever holds the run
            holder = "c1" if await _holds(first) else "c2"
            await up.of(holder).kill()
            (up.workspace / "go").touch()
            assert await run == ["now", "did-a", "did-b"]
            (taken_over,) = await receiver.until_named(RUN)
            agents = await receiver.until_named("invoke_agent shell", 2)
            attempts = await receiver.until_named("attempt shell", 2)
        (of_first,) = receiver.named("step echo")
        assert taken_over.attributes["fanfold.run.epoch"] == 2
        assert taken_over.attributes["fanfold.run.state"] == "completed"
        assert taken_over.links == ((of_first.trace_id, of_first.parent_id),)
        assert taken_over.parent_id == of_first.parent_id, "its first span, which was lost with its holder"
        everything: list[SentSpan] = receiver.spans
        assert {span.trace_id for span in everything} == {taken_over.trace_id}
        assert not any(span.error for span in everything)
        assert [span.attributes["fanfold.adopted"] for span in attempts] == [True, True]
        executions = {span.attributes["fanfold.execution.id"] for span in agents}
        assert executions == {span.attributes["fanfold.execution.id"] for span in attempts}
        assert {headers["authorization"] for headers in receiver.headers} == {"Bearer of-the-collector"}
        logs = [file.read_text() for file in tmp_path.glob("*.log")]
        assert len(logs) == 3
        assert not any("of-the-collector" in log for log in logs)


async def _result(mesh: Mesh) -> list[str]:
    echo = AgentStepSpec(task_id="echo", agent="echo", description="d", prompt="now")
    result = await mesh.parallel_resumable([echo, slow("a"), slow("b")], workflow_id="audit")
    return [outcome.output.strip() for outcome in result]


async def _holds(coordinator: Child) -> bool:
    async with Mesh(coordinator.address) as mesh:
        (run,) = await mesh.runs()
        return run.coordinator == coordinator.name
