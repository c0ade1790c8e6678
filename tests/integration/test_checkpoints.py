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
from fanfold.rpc.channels import open_channel
from fanfold.v1.coordinator_pb2_grpc import CoordinatorStub
from fanfold.wire.checkpoint import checkpoint_requests
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


async def test_what_was_begun_in_one_mesh_is_finished_in_another(tmp_path: Path) -> None:
    async with mesh_in(tmp_path / "one") as one:
        run = one.mesh.parallel_resumable(noted(30), "release-audit")
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
        again = two.mesh.parallel_resumable(noted(30), "release-audit")
        result = await again
        assert again.recalled == ended(run)
        assert ran(tmp_path / "two") == Counter({f"s{n}" for n in range(30)} - ended(run))
        assert [outcome.output for outcome in result] == [f"out {n}\n" for n in range(30)]
        with pytest.raises(NotFound, match="release-audit"):  # all have succeeded
            await two.mesh.checkpoint("release-audit")


async def test_only_whole_checkpoints_of_workflows_that_do_not_run_are_kept(tmp_path: Path) -> None:
    async with mesh_in(tmp_path / "one") as one:
        run = one.mesh.parallel_resumable(noted(30), "release-audit")
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
        foreign = list(checkpoint_requests(kept))
        foreign[0].checkpoint.workflow_id = "another"
        cut_off = list(checkpoint_requests(replace(kept, records=rest)))
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


@pytest.mark.contract("C17")
async def test_a_mesh_without_a_journal_has_no_checkpoints(tmp_path: Path) -> None:
    async with running_mesh(tmp_path) as running:
        for asking in (running.mesh.checkpoint("w"), running.mesh.put_checkpoint(WorkflowCheckpoint(workflow_id="w"))):
            with pytest.raises(FailedPrecondition) as caught:
                await asking
            assert caught.value.reason == "NO_JOURNAL"
