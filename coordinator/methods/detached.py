"""Methods about runs that go on without a caller, and about runs that are to be gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from coordinator.methods.callers import Context
from coordinator.methods.forwarding import Forwarding
from coordinator.methods.requests import read_run
from coordinator.runs.checks import RequestChecks
from coordinator.runs.disposal import dispose
from coordinator.runs.durable import HeldElsewhere
from coordinator.runs.queries import RunQueries
from coordinator.runs.runs import Runs
from fanfold.errors import InvalidArgument
from fanfold.model.validation import parse_line
from fanfold.rpc.call import current_principal
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1.coordinator_pb2_grpc import CoordinatorServicer as GeneratedServicer
from fanfold.wire.request import start_requests
from fanfold.wire.run import run_to_proto
from fanfold.wire.time import seconds_from_proto

DISPOSE_SECONDS = 30.0
MAX_DISPOSE_SECONDS = 3_600.0


class DetachedMethods(GeneratedServicer):
    """StartRun, DisposeRun."""

    _runs: Runs
    _checks: RequestChecks
    _queries: RunQueries
    _forwarding: Forwarding

    async def StartRun(  # noqa: N802 - named by the proto
        self, request_iterator: AsyncIterator[pb.StartRunRequest], context: Context
    ) -> pb.StartRunResponse:
        """Start a detached run."""
        asked = await read_run(self._checks, aiter(request_iterator))
        opening = replace(asked.opening, attached=False)
        try:
            if asked.script is not None:
                run = await self._runs.start_script(opening, asked.script, asked.wrong)
            else:
                run = await self._runs.start(opening, asked.specs)
        except HeldElsewhere as elsewhere:
            requests = start_requests(asked.message, asked.specs)
            response: pb.StartRunResponse = await self._forwarding.unary(
                elsewhere.address, context, lambda stub, metadata: stub.StartRun(requests, metadata=metadata)
            )
            return response
        return pb.StartRunResponse(run=run_to_proto(run))

    async def DisposeRun(self, request: pb.DisposeRunRequest, context: Context) -> pb.DisposeRunResponse:  # noqa: N802
        """Cancel a run if needed, and answer when it is gone."""
        run_id = parse_line(request.run_id, path="run_id", required=True)
        within = seconds_from_proto(request.timeout) if request.HasField("timeout") else DISPOSE_SECONDS
        if not 0 <= within <= MAX_DISPOSE_SECONDS:
            raise InvalidArgument.of_field("timeout", f"must be from 0 to {MAX_DISPOSE_SECONDS:,.0f} seconds")
        try:
            run = await dispose(self._runs, self._queries, current_principal(), run_id, within)
        except HeldElsewhere as elsewhere:
            response: pb.DisposeRunResponse = await self._forwarding.unary(
                elsewhere.address, context, lambda stub, metadata: stub.DisposeRun(request, metadata=metadata)
            )
            return response
        return pb.DisposeRunResponse(run=run_to_proto(run))
