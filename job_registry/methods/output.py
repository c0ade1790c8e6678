"""Methods about what jobs leave behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from fanfold.errors import InvalidArgument
from fanfold.rpc.call import current_principal
from fanfold.v1 import job_registry_pb2 as pb
from fanfold.v1.job_registry_pb2_grpc import JobRegistryServicer as GeneratedServicer
from fanfold.wire.job import output_piece_to_proto
from job_registry.limits import MAX_OFFSET
from job_registry.methods.jobs import job_id_of
from job_registry.methods.production import Context
from job_registry.reading import Reading


class OutputMethods(GeneratedServicer):
    """ReadJobOutput, GetJobResult."""

    _reading: Reading

    async def ReadJobOutput(  # noqa: N802 - named by the proto
        self, request: pb.ReadJobOutputRequest, context: Context
    ) -> AsyncIterator[pb.ReadJobOutputResponse]:
        """Read a job's output, and follow it."""
        if request.offset > MAX_OFFSET:
            raise InvalidArgument.of_field("offset", f"must be at most {MAX_OFFSET}")
        principal, job_id = current_principal(), job_id_of(request.job_id)
        pieces = self._reading.output(principal, job_id, request.source, request.offset, follow=request.follow)
        async with aclosing(pieces):
            async for piece in pieces:
                yield output_piece_to_proto(piece)

    async def GetJobResult(  # noqa: N802
        self, request: pb.GetJobResultRequest, context: Context
    ) -> AsyncIterator[pb.GetJobResultResponse]:
        """Give a job's result."""
        async with aclosing(self._reading.result(current_principal(), job_id_of(request.job_id))) as parts:
            async for part in parts:
                yield pb.GetJobResultResponse(data=part)
