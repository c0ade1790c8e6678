"""Methods about checkpoints: workflows that move from one mesh to another (C7, C19)."""

from __future__ import annotations

from collections.abc import AsyncIterator

from coordinator.methods.callers import Context
from coordinator.runs.checkpoints import checkpoint_of, keep_checkpoint
from coordinator.runs.checks import RequestChecks
from coordinator.runs.runs import Runs
from fanfold.errors import InvalidArgument
from fanfold.model.validation import parse_line, parse_request_id
from fanfold.rpc.call import current_principal
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1.coordinator_pb2_grpc import CoordinatorServicer as GeneratedServicer
from fanfold.wire.checkpoint import CheckpointReader, checkpoint_messages


class CheckpointMethods(GeneratedServicer):
    """GetCheckpoint, PutCheckpoint."""

    _runs: Runs
    _checks: RequestChecks

    async def GetCheckpoint(  # noqa: N802 - named by the proto
        self, request: pb.GetCheckpointRequest, context: Context
    ) -> AsyncIterator[pb.GetCheckpointResponse]:
        """Give the checkpoint of a workflow."""
        workflow_id = parse_line(request.workflow_id, path="workflow_id", required=True)
        checkpoint = await checkpoint_of(self._runs.durable.journal, current_principal().name, workflow_id)
        for response in checkpoint_messages(checkpoint, pb.GetCheckpointResponse, in_parts=request.takes_parts):
            yield response

    async def PutCheckpoint(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.PutCheckpointRequest], context: Context
    ) -> pb.PutCheckpointResponse:
        """Keep a checkpoint, to be resumed here."""
        journal = self._runs.durable.journal
        reader = CheckpointReader()
        total: int | None = None
        size = 0
        async for request in request_iterator:
            parse_request_id(request.request_id)
            total = request.total_records if request.HasField("total_records") else total
            size += request.ByteSize()
            self._checks.refuse_oversize_checkpoint(size)
            reader.take(request)
        checkpoint = reader.checkpoint()
        count = len(checkpoint.records)
        if total is not None and total != count:
            raise InvalidArgument.of_field("checkpoint.records", f"must be {total:,} (total_records), not {count:,}")
        await keep_checkpoint(journal, current_principal().name, checkpoint)
        return pb.PutCheckpointResponse(records=count)
