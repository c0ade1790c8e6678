"""Methods about checkpoints: workflows that move from one mesh to another (C7, C19)."""

from __future__ import annotations

from collections.abc import AsyncIterator

from google.protobuf.message import Message

from coordinator.methods.callers import ANONYMOUS, Context
from coordinator.runs.checkpoints import checkpoint_of, keep_checkpoint
from coordinator.runs.runs import Runs
from fanfold.errors import InvalidArgument
from fanfold.model.checkpoint import CHECKPOINT_VERSION, StepRecord, WorkflowCheckpoint
from fanfold.model.checkpoint_form import refuse_newer
from fanfold.model.validation import parse_line
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1.coordinator_pb2_grpc import CoordinatorServicer as GeneratedServicer
from fanfold.wire.batches import batches
from fanfold.wire.checkpoint import record_into, records_from_proto
from fanfold.wire.time import set_timestamp

MAX_RECORDS = 1_000_000


class CheckpointMethods(GeneratedServicer):
    """GetCheckpoint, PutCheckpoint."""

    _runs: Runs

    async def GetCheckpoint(  # noqa: N802 - named by the proto
        self, request: pb.GetCheckpointRequest, context: Context
    ) -> AsyncIterator[pb.GetCheckpointResponse]:
        """Give the checkpoint of a workflow."""
        workflow_id = parse_line(request.workflow_id, path="workflow_id", required=True)
        checkpoint = await checkpoint_of(self._runs.durable.journal, ANONYMOUS, workflow_id)

        def add(record: StepRecord, response: pb.GetCheckpointResponse) -> Message:
            return record_into(record, workflow_id, response.checkpoint.records.add())

        for response in batches(checkpoint.records, pb.GetCheckpointResponse, add):
            response.checkpoint.schema_version = CHECKPOINT_VERSION
            response.checkpoint.workflow_id = workflow_id
            if checkpoint.updated_at is not None:
                set_timestamp(response.checkpoint.updated_at, checkpoint.updated_at)
            yield response

    async def PutCheckpoint(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.PutCheckpointRequest], context: Context
    ) -> pb.PutCheckpointResponse:
        """Keep a checkpoint, to be resumed here."""
        journal = self._runs.durable.journal
        workflow_id = ""
        records: list[StepRecord] = []
        total: int | None = None
        async for request in request_iterator:
            part = request.checkpoint
            total = request.total_records if request.HasField("total_records") else total
            refuse_newer(part.schema_version)
            workflow_id = workflow_id or parse_line(part.workflow_id, path="checkpoint.workflow_id", required=True)
            if part.workflow_id != workflow_id:
                raise InvalidArgument.of_field("checkpoint.workflow_id", f"must be {workflow_id!r} in every part")
            records += records_from_proto(part.records, workflow_id, first_index=len(records))
            if len(records) > MAX_RECORDS:
                raise InvalidArgument.of_field("checkpoint.records", f"must be at most {MAX_RECORDS:,}")
        if not workflow_id:
            raise InvalidArgument.of_field("checkpoint", "is required")
        if total is not None and total != len(records):
            raise InvalidArgument.of_field(
                "checkpoint.records", f"must be {total:,} (total_records), not {len(records):,}"
            )
        await keep_checkpoint(journal, ANONYMOUS, WorkflowCheckpoint(workflow_id=workflow_id, records=records))
        return pb.PutCheckpointResponse(records=len(records))
