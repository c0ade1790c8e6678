"""Runs whose journal's database goes away for a while: they pause, say so, and go on; nothing is lost or done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from fanfold import AgentStepSpec, Mesh
from fanfold.rpc.channels import open_channel
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1 import run_pb2, step_pb2
from fanfold.v1.coordinator_pb2_grpc import CoordinatorStub
from support.coordinators import SHORT_LEASES, coordinators
from support.journals import eventually
from support.postgres import Server, running_server

pytestmark = pytest.mark.process

STEPS = 3
COMMAND = "echo start-{0} >> lines; while [ ! -e go ]; do sleep 0.05; done; echo end-{0} >> lines; echo did-{0}"
ALL_LINES = sorted(f"{what}-{number}" for number in range(STEPS) for what in ("start", "end"))


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of the test's own, which it may stop."""
    with running_server() as running:
        yield running


def lines(workspace: Path) -> list[str]:
    """What the steps have noted."""
    file = workspace / "lines"
    return file.read_text().split() if file.exists() else []


async def until_lines(workspace: Path, count: int) -> None:
    async def are_there() -> bool:
        return len(lines(workspace)) >= count

    await eventually(are_there, f"{count} lines of steps")


NODES = {"lease": 4.0, "lease_grace": 1.0, "lease_margin": 0.5}
"""Leases of steps on nodes: what was given up at the outage's beginning would be killed before its end."""


async def waits_on_the_journal(stub: Any, run_id: str) -> bool:
    found = await stub.GetRun(pb.GetRunRequest(run_id=run_id))
    return "the journal" in found.run.waiting_on


@pytest.mark.contract("C17", "C18", "C19", "C42", "F2", "F5")
async def test_an_outage_of_several_leases_holds_a_run_up_and_leaves_its_callers_stream_whole(
    tmp_path: Path, server: Server
) -> None:
    journal = {"path": "", "url": server.url("postgres"), "outage": 60.0}
    settings: dict[str, Any] = {"journal": journal, "leases": NODES}
    async with coordinators(tmp_path, **settings) as up, open_channel(up.of("c1").address) as channel:
        stub: Any = CoordinatorStub(channel)
        steps = [
            step_pb2.AgentStepSpec(task_id=str(number), agent="shell", description="d", prompt=COMMAND.format(number))
            for number in range(STEPS)
        ]
        opening = pb.RunOpen(
            workflow_id="audit", events=run_pb2.EVENT_DETAIL_LIFECYCLE, parallel=pb.ParallelRun(total_steps=STEPS)
        )
        call = stub.Run(iter([pb.RunRequest(open=opening), pb.RunRequest(steps=pb.StepBatch(steps=steps))]))
        events: list[run_pb2.RunEvent] = [*(await call.read()).events]
        run_id = events[0].started.run_id
        await until_lines(up.workspace, STEPS)
        server.stop()
        await asyncio.sleep(3 * SHORT_LEASES["lease"])  # longer than what runs lives without a word
        (up.workspace / "go").touch()
        await until_lines(up.workspace, 2 * STEPS)
        await eventually(lambda: waits_on_the_journal(stub, run_id), "the run waits on the journal")
        assert not [event for event in events if event.step.event.HasField("ended")]
        server.start()
        async with asyncio.timeout(60):
            while (response := await call.read()) is not grpc.aio.EOF:
                events += response.events
        assert events[-1].ended.run.state == run_pb2.RUN_STATE_COMPLETED
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert events[-1].ended.run.steps.succeeded == STEPS
        found = await stub.GetRun(pb.GetRunRequest(run_id=run_id))
        assert found.run.coordinator == "c1", "it was taken over"
    assert sorted(lines(up.workspace)) == ALL_LINES


@pytest.mark.contract("C17", "C19", "F2", "F5")
async def test_an_outage_that_is_not_waited_out_costs_no_step_and_no_call(tmp_path: Path, server: Server) -> None:
    steps = [
        AgentStepSpec(task_id=str(number), agent="shell", description="d", prompt=COMMAND.format(number))
        for number in range(STEPS)
    ]
    journal = {"path": "", "url": server.url("postgres"), "caller_grace": 30.0}
    async with coordinators(tmp_path, journal=journal) as up, Mesh(up.servers) as mesh:
        run = asyncio.ensure_future(_result(mesh, steps))
        await until_lines(up.workspace, STEPS)
        server.stop()
        await asyncio.sleep(2 * SHORT_LEASES["lease"])  # an outage of that length, during which the steps go on
        (up.workspace / "go").touch()
        await until_lines(up.workspace, 2 * STEPS)
        server.start()
        async with asyncio.timeout(60):
            outputs = await run
        assert outputs == [f"did-{number}" for number in range(STEPS)]
        assert sorted(lines(up.workspace)) == ALL_LINES


async def _result(mesh: Mesh, steps: list[AgentStepSpec]) -> list[str]:
    result = await mesh.parallel_resumable(steps, "audit")
    return [outcome.output.strip() for outcome in result]
