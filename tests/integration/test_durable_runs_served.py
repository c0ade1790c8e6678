"""Journaled runs over gRPC, with a real coordinator, node and SQLite file, from the protos alone (C16 to C19, C28)."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from fanfold.rpc.channels import open_channel
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1 import run_pb2, step_pb2
from fanfold.v1.coordinator_pb2_grpc import CoordinatorStub
from support.mesh import RunningMesh, coordinator_alone, running_mesh

pytestmark = pytest.mark.process

LIFECYCLE = run_pb2.EVENT_DETAIL_LIFECYCLE
SHORT = {"lease": 1.5, "renewal": 0.3, "lease_margin": 0.4, "claim": 0.1, "outage": 0.0, "caller_grace": 1.0}


def journal(tmp_path: Path) -> dict[str, Any]:
    return {"path": str(tmp_path / "journal.db"), **SHORT}


@asynccontextmanager
async def durable_mesh(tmp_path: Path) -> AsyncIterator[tuple[RunningMesh, Any]]:
    settings = {"journal": journal(tmp_path)}
    async with (
        running_mesh(tmp_path, coordinator=settings) as mesh,
        open_channel(mesh.coordinator.address) as channel,
    ):
        yield mesh, CoordinatorStub(channel)


def step(task_id: str, agent: str = "noop", prompt: str = "p") -> step_pb2.AgentStepSpec:
    return step_pb2.AgentStepSpec(task_id=task_id, agent=agent, description="d", prompt=prompt)


def request(steps: Sequence[step_pb2.AgentStepSpec], **opening: Any) -> list[pb.RunRequest]:
    opening = {"workflow_id": "audit", "parallel": pb.ParallelRun(total_steps=len(steps)), **opening}
    return [pb.RunRequest(open=pb.RunOpen(**opening)), pb.RunRequest(steps=pb.StepBatch(steps=steps))]


async def events_of(call: Any) -> list[run_pb2.RunEvent]:
    events: list[run_pb2.RunEvent] = []
    while (response := await call.read()) is not grpc.aio.EOF:
        events += response.events
    return events


def outcomes(events: Sequence[run_pb2.RunEvent]) -> dict[int, str]:
    ended = [event.step for event in events if event.step.event.HasField("ended")]
    return {each.index: each.event.ended.outcome.output for each in ended}


@pytest.mark.contract("C16", "C18", "C28", "C33")
async def test_a_run_is_found_listed_and_told_again(tmp_path: Path) -> None:
    async with durable_mesh(tmp_path) as (_, stub):
        asked = request([step("a", prompt="x"), step("b", prompt="y")], request_id="r1", events=LIFECYCLE)
        first = await events_of(stub.Run(iter(asked)))
        assert outcomes(first) == {0: "x", 1: "y"}
        assert [event.sequence for event in first] == list(range(1, 7))
        assert await events_of(stub.Run(iter(asked))) == first
        run_id = first[0].started.run_id
        found = (await stub.GetRun(pb.GetRunRequest(run_id=run_id))).run
        assert (found.state, found.workflow_id) == (run_pb2.RUN_STATE_COMPLETED, "audit")
        assert (found.steps.total, found.steps.succeeded) == (2, 2)
        watched = await events_of(stub.WatchRun(pb.WatchRunRequest(run_id=run_id, from_sequence=4, events=LIFECYCLE)))
        assert watched == first[3:]
        assert await events_of(stub.WatchRun(pb.WatchRunRequest(run_id=run_id, from_sequence=7))) == []
        with pytest.raises(grpc.aio.AioRpcError, match="there is no event 8; the last is 6") as caught:
            await events_of(stub.WatchRun(pb.WatchRunRequest(run_id=run_id, from_sequence=8)))
        assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE
        listed = await stub.ListRuns(pb.ListRunsRequest(workflow_id="audit"))
        assert [run.run_id for run in listed.runs] == [run_id]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetRun(pb.GetRunRequest(run_id="run-of-nobody"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_pages_of_runs_go_on_where_they_ended(tmp_path: Path) -> None:
    async with durable_mesh(tmp_path) as (_, stub):
        ids = []
        for number in range(5):
            events = await events_of(stub.Run(iter(request([step("a")], workflow_id=f"w{number}"))))
            ids.append(events[0].started.run_id)
        listed, token = [], ""
        while True:
            page = await stub.ListRuns(pb.ListRunsRequest(page_size=2, page_token=token))
            listed += [run.run_id for run in page.runs]
            if not (token := page.next_page_token):
                break
        assert listed == ids[::-1]


@pytest.mark.contract("C41")
@pytest.mark.parametrize("key", [["2026-01-01T00:00:00", "run-1"], ["2026-01-01T00:00:00+00:00", "\ud800"]])
async def test_a_page_token_that_was_made_up_is_refused(tmp_path: Path, key: list[str]) -> None:
    token = base64.urlsafe_b64encode(json.dumps(key).encode()).decode()
    async with coordinator_alone(journal=journal(tmp_path)) as serving, open_channel(serving.address) as channel:
        stub: Any = CoordinatorStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListRuns(pb.ListRunsRequest(page_token=token))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.contract("C17")
async def test_without_a_journal_resumable_calls_are_refused(tmp_path: Path) -> None:
    async with running_mesh(tmp_path) as mesh, open_channel(mesh.coordinator.address) as channel:
        stub: Any = CoordinatorStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await events_of(stub.Run(iter(request([step("a")]))))
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "journal.path" in (caught.value.details() or "")


@pytest.mark.contract("C7", "C19")
async def test_a_checkpoint_moves_to_another_mesh(tmp_path: Path) -> None:
    steps = [step("a", prompt="x"), step("b", agent="gives-up")]
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    async with durable_mesh(tmp_path / "one") as (_, stub):
        await events_of(stub.Run(iter(request(steps))))
        parts = [part.checkpoint async for part in stub.GetCheckpoint(pb.GetCheckpointRequest(workflow_id="audit"))]
    assert [record.key for part in parts for record in part.records] == ["a"]
    async with durable_mesh(tmp_path / "two") as (_, stub):
        kept = await stub.PutCheckpoint(iter([pb.PutCheckpointRequest(checkpoint=part) for part in parts]))
        assert kept.records == 1
        events = await events_of(
            stub.Run(iter(request([step("a", prompt="x"), step("c", prompt="z")], events=LIFECYCLE)))
        )
        assert outcomes(events) == {0: "x", 1: "z"}
        recorded = next(event.step.event for event in events if event.step.event.HasField("ended"))
        assert recorded.ended.outcome == parts[0].records[0].outcome
        tampered = run_pb2.WorkflowCheckpoint()
        tampered.CopyFrom(parts[0])
        tampered.records[0].outcome.output = "something else"
        newer = run_pb2.WorkflowCheckpoint(schema_version=99, workflow_id="audit")
        for wrong, code in ((tampered, "INVALID_ARGUMENT"), (newer, "FAILED_PRECONDITION")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.PutCheckpoint(iter([pb.PutCheckpointRequest(checkpoint=wrong)]))
            assert caught.value.code().name == code


@pytest.mark.contract("C19")
async def test_calls_that_reach_another_coordinator_are_passed_on(tmp_path: Path) -> None:
    async with (
        durable_mesh(tmp_path) as (mesh, stub),
        coordinator_alone(journal=journal(tmp_path)) as other,
        open_channel(other.address) as channel,
    ):
        elsewhere: Any = CoordinatorStub(channel)
        asked = request([step("a", agent="waits", prompt="60")], request_id="r1", events=LIFECYCLE)
        call = stub.Run(iter(asked))
        run_id = (await call.read()).events[0].started.run_id
        watching = elsewhere.WatchRun(pb.WatchRunRequest(run_id=run_id, events=LIFECYCLE))
        assert (await watching.read()).events[0].started.run_id == run_id
        cancelled = await elsewhere.CancelRun(pb.CancelRunRequest(run_id=run_id, reason="enough"))
        assert cancelled.run.run_id == run_id
        last = (await events_of(watching))[-1]
        assert (last.ended.run.state, last.ended.run.reason) == (run_pb2.RUN_STATE_CANCELLED, "enough")
        assert (await events_of(call))[-1] == last
        assert mesh.coordinator.address != other.address
