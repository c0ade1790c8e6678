"""Checkpoints that move from one mesh to another (C7, C19)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from fanfold.errors import Aborted, FailedPrecondition, InvalidArgument, NotFound
from fanfold.model.checkpoint import StepRecord, WorkflowCheckpoint
from fanfold.model.checkpoint_form import checkpoint_from_json, checkpoint_to_json
from fanfold.model.step import StepOutcome
from fanfold.rpc.channels import open_channel
from fanfold.rpc.status import from_rpc_error
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1.coordinator_pb2_grpc import CoordinatorStub
from fanfold.wire.checkpoint import CheckpointReader, checkpoint_messages
from support.coordinators import journal_in
from support.mesh import running_mesh
from support.noted import begun, ended, noted, ran

pytestmark = [pytest.mark.process, pytest.mark.contract("C7", "C19")]


def mesh_in(folder: Path) -> Any:
    """A mesh with a journal, that works in that folder."""
    folder.mkdir()
    return running_mesh(folder, coordinator=journal_in(folder))


def by_key(checkpoint: WorkflowCheckpoint) -> dict[str, StepRecord]:
    """Its records; they have no order."""
    return {record.key: record for record in checkpoint.records}


def requests_of(checkpoint: WorkflowCheckpoint) -> list[pb.PutCheckpointRequest]:
    """The messages that have a checkpoint kept."""
    total = len(checkpoint.records)
    return list(checkpoint_messages(checkpoint, lambda: pb.PutCheckpointRequest(total_records=total), in_parts=True))


def checkpoint_with(*outputs: str) -> WorkflowCheckpoint:
    """A checkpoint of steps that have succeeded with these outputs."""
    records = [
        StepRecord(
            key=f"s{index}",
            fingerprint=f"{index:064x}",
            outcome=StepOutcome(task_id=f"s{index}", session_id="", agent="noop", output=output, success=True),
        )
        for index, output in enumerate(outputs)
    ]
    return WorkflowCheckpoint(workflow_id="fat", records=records)


async def test_what_was_begun_in_one_mesh_is_finished_in_another(tmp_path: Path) -> None:
    async with mesh_in(tmp_path / "one") as one:
        run = one.mesh.parallel_resumable(noted(30, held_from=8), "release-audit")
        task = await begun(run)
        task.cancel()
        await asyncio.wait([task])
        exported = await one.mesh.checkpoint("release-audit")
        assert {record.key for record in exported.records} == ended(run)
        assert exported.updated_at == max(record.outcome.ended_at for record in exported.records)
        by_index = {outcome.task_id: outcome for outcome in run.outcomes if outcome is not None}
        assert {record.key: record.outcome for record in exported.records} == by_index
    carried = checkpoint_from_json(json.loads(json.dumps(checkpoint_to_json(exported))))
    assert carried == exported
    async with mesh_in(tmp_path / "two") as two:
        assert await two.mesh.put_checkpoint(carried) == len(exported.records)
        (two.workspace / "go").touch()
        again = two.mesh.parallel_resumable(noted(30, held_from=8), "release-audit")
        result = await again
        assert again.recalled == ended(run)
        assert ran(tmp_path / "two") == Counter({f"s{n}" for n in range(30)} - ended(run))
        assert [outcome.output for outcome in result] == [f"out {n}\n" for n in range(30)]
        with pytest.raises(NotFound, match="release-audit"):  # all have succeeded
            await two.mesh.checkpoint("release-audit")


async def test_only_whole_checkpoints_of_workflows_that_do_not_run_are_kept(tmp_path: Path) -> None:
    async with mesh_in(tmp_path / "one") as one:
        run = one.mesh.parallel_resumable(noted(30, held_from=8), "release-audit")
        task = await begun(run)
        with pytest.raises(Aborted) as held:
            await one.mesh.put_checkpoint(WorkflowCheckpoint(workflow_id="release-audit"))
        assert held.value.reason == "WORKFLOW_HELD"
        task.cancel()
        await asyncio.wait([task])
        kept = await one.mesh.checkpoint("release-audit")
        first, *rest = kept.records
        twice = replace(kept, records=[first, first])
        newer = replace(kept, schema_version=2)
        for wrong, kind, why in (
            (twice, InvalidArgument, "given twice"),
            (newer, FailedPrecondition, "version 2"),
        ):
            with pytest.raises(kind, match=why):
                await one.mesh.put_checkpoint(wrong)
        foreign = requests_of(kept)
        foreign[0].checkpoint.workflow_id = "another"
        cut_off = requests_of(replace(kept, records=rest))
        cut_off[0].total_records = len(kept.records)
        async with open_channel(one.coordinator.address) as channel:
            stub: Any = CoordinatorStub(channel)
            for requests, why in ((foreign, "another workflow"), (cut_off, "must be ")):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.PutCheckpoint(iter(requests))
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert why in (caught.value.details() or "")
        assert by_key(await one.mesh.checkpoint("release-audit")) == by_key(kept)
        assert await one.mesh.put_checkpoint(replace(kept, records=rest)) == len(rest)
        assert by_key(await one.mesh.checkpoint("release-audit")) == by_key(replace(kept, records=rest))


async def test_records_of_any_size_move_in_messages_that_every_client_takes(tmp_path: Path) -> None:
    fat = checkpoint_with("small", "ж" * 5_000_000, "small too", '{"x": 1}' * 200_000)
    async with mesh_in(tmp_path / "one") as one, open_channel(one.coordinator.address) as channel:
        assert await one.mesh.put_checkpoint(fat) == 4
        assert by_key(await one.mesh.checkpoint("fat")) == by_key(fat)
        stub: Any = CoordinatorStub(channel)
        responses = [
            each async for each in stub.GetCheckpoint(pb.GetCheckpointRequest(workflow_id="fat", takes_parts=True))
        ]
        assert max(each.ByteSize() for each in responses) < 4 * 2**20
        whole, reader = stub.GetCheckpoint(pb.GetCheckpointRequest(workflow_id="fat")), CheckpointReader("fat")
        async for each in whole:
            assert not each.HasField("part")
            reader.take(each)
        assert by_key(reader.checkpoint()) == by_key(fat)


async def test_what_is_wrong_with_the_messages_is_told_and_nothing_is_kept(tmp_path: Path) -> None:
    fat, most = checkpoint_with("small", "x" * 1_000_000), 3_000_000
    requests = requests_of(fat)
    long_id = [pb.PutCheckpointRequest(request_id="x" * 129), *requests]
    settings = {**journal_in(tmp_path), "limits": {"run_bytes": most}}
    async with (
        running_mesh(tmp_path, coordinator=settings) as one,
        open_channel(one.coordinator.address) as channel,
    ):
        stub: Any = CoordinatorStub(channel)
        for wrong, field, why in (
            (requests[:-1], "part", "followed"),
            ([], "checkpoint", "required"),
            (requests * 3, "checkpoint", f"at most {most:,} bytes (limits.run_bytes)"),
            (long_id, "request_id", "128"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.PutCheckpoint(iter(wrong))
            error = from_rpc_error(caught.value)
            assert isinstance(error, InvalidArgument)
            assert error.violations[0].field == field
            assert why in error.violations[0].description
        with pytest.raises(NotFound):
            await one.mesh.checkpoint("fat")
        assert await stub.PutCheckpoint(iter(requests)) == pb.PutCheckpointResponse(records=2)


@pytest.mark.contract("C17")
async def test_a_mesh_without_a_journal_has_no_checkpoints(tmp_path: Path) -> None:
    async with running_mesh(tmp_path) as running:
        for asking in (running.mesh.checkpoint("w"), running.mesh.put_checkpoint(WorkflowCheckpoint(workflow_id="w"))):
            with pytest.raises(FailedPrecondition) as caught:
                await asking
            assert caught.value.reason == "NO_JOURNAL"
