"""Methods about runs and single steps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime

from coordinator.journal.journal import RunFilter
from coordinator.methods.answers import run_responses, without_value
from coordinator.methods.callers import Context
from coordinator.methods.forwarding import Forwarding
from coordinator.methods.requests import read_run
from coordinator.runs.checks import RequestChecks
from coordinator.runs.durable import HeldElsewhere
from coordinator.runs.opening import Opening
from coordinator.runs.queries import RunQueries, order_of
from coordinator.runs.runs import Runs
from fanfold.errors import DeadlineExceeded, InvalidArgument, Unavailable
from fanfold.model.run import Run
from fanfold.model.validation import parse_line, parse_request_id, parse_spec
from fanfold.rpc.call import current_principal
from fanfold.rpc.traced import current_trace
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1.coordinator_pb2_grpc import CoordinatorServicer as GeneratedServicer
from fanfold.wire.ahead import step_batches
from fanfold.wire.paging import key_of_token, page_size_of, page_token
from fanfold.wire.request import run_requests
from fanfold.wire.run import detail_from_proto, run_to_proto, state_from_proto
from fanfold.wire.step import spec_from_proto

MAX_REASON = 4096
"""Characters of a reason to cancel."""


TELL_SECONDS = 1.0
"""How long a coordinator that holds a run may take to answer that it is to be cancelled, which is durable anyway."""


class RunMethods(GeneratedServicer):
    """Run, ExecuteStep, GetRun, ListRuns, WatchRun, CancelRun."""

    _runs: Runs
    _checks: RequestChecks
    _queries: RunQueries
    _forwarding: Forwarding

    async def Run(  # noqa: N802 - named by the proto
        self, request_iterator: AsyncIterator[pb.RunRequest], context: Context
    ) -> AsyncIterator[pb.RunResponse]:
        """Run a fan-out or a script while the stream lasts."""
        asked = await read_run(self._checks, aiter(request_iterator))
        if asked.script is not None:
            kind = self._runs.script(asked.opening, asked.script, asked.wrong)
        else:
            kind = self._runs.parallel(asked.opening, asked.specs)
        try:
            async with kind as source:
                while events := await source.read():
                    for response in run_responses(events, pb.RunResponse, takes_parts=asked.opening.takes_parts):
                        yield response
        except HeldElsewhere as elsewhere:
            requests = run_requests(asked.message, asked.specs)
            there = self._forwarding.stream(
                elsewhere.address, context, lambda stub, metadata: stub.Run(requests, metadata=metadata)
            )
            async with there as responses:
                async for response in responses:
                    yield response

    async def GetRun(self, request: pb.GetRunRequest, context: Context) -> pb.GetRunResponse:  # noqa: N802
        """Tell how a run fares."""
        run = await self._queries.get(current_principal(), _run_id_of(request))
        return pb.GetRunResponse(run=run_to_proto(run))

    async def ListRuns(self, request: pb.ListRunsRequest, context: Context) -> pb.ListRunsResponse:  # noqa: N802
        """List the runs that the caller may see."""
        size = page_size_of(request.page_size)
        principal = current_principal()
        wanted = RunFilter(
            owner=None if principal.sees_all else principal.name,
            states=frozenset(map(state_from_proto, request.states)),
            workflow_id=request.workflow_id,
            before=_before_of(request.page_token),
            limit=size + 1,
        )
        runs = await self._queries.list_runs(wanted)
        page = runs[:size]
        token = _token_of(page[-1]) if len(runs) > size else ""
        return pb.ListRunsResponse(runs=map(run_to_proto, page), next_page_token=token)

    async def WatchRun(  # noqa: N802
        self, request: pb.WatchRunRequest, context: Context
    ) -> AsyncIterator[pb.WatchRunResponse]:
        """Follow a run's events."""
        detail = detail_from_proto(request.events)
        run_id = _run_id_of(request)
        try:
            source = await self._queries.watch(current_principal(), run_id, request.from_sequence, detail)
            while events := without_value(await source.read()):
                for response in run_responses(events, pb.WatchRunResponse, takes_parts=request.takes_parts):
                    yield response
        except HeldElsewhere as elsewhere:
            there = self._forwarding.stream(
                elsewhere.address, context, lambda stub, metadata: stub.WatchRun(request, metadata=metadata)
            )
            async with there as responses:
                async for response in responses:
                    yield response

    async def CancelRun(self, request: pb.CancelRunRequest, context: Context) -> pb.CancelRunResponse:  # noqa: N802
        """Ask a run to stop."""
        reason = parse_line(request.reason, path="reason", most=MAX_REASON) or "its owner cancelled it"
        try:
            run = await self._queries.cancel(current_principal(), _run_id_of(request), reason)
        except HeldElsewhere as elsewhere:
            with suppress(Unavailable, DeadlineExceeded):  # then its holder hears of it when it looks at the journal
                told: pb.CancelRunResponse = await self._forwarding.unary(
                    elsewhere.address,
                    context,
                    lambda stub, metadata: stub.CancelRun(request, metadata=metadata, timeout=TELL_SECONDS),
                )
                return told
            run = await self._queries.get(current_principal(), _run_id_of(request))
        return pb.CancelRunResponse(run=run_to_proto(run))

    async def ExecuteStep(  # noqa: N802
        self, request: pb.CoordinatorExecuteStepRequest, context: Context
    ) -> AsyncIterator[pb.CoordinatorExecuteStepResponse]:
        """Place and run one step while the stream lasts."""
        self._checks.refuse_fat_step(request.step.ByteSize(), path="step")
        spec = parse_spec(spec_from_proto(request.step), path="step")
        opening = Opening(
            owner=current_principal().name,
            request_id=parse_request_id(request.request_id),
            detail=detail_from_proto(request.events),
            trace=current_trace(),
        )
        async with self._runs.step(opening, spec) as feed:
            while events := await feed.read():
                for response in step_batches(
                    events, pb.CoordinatorExecuteStepResponse, takes_parts=request.takes_parts
                ):
                    yield response


def _run_id_of(request: pb.GetRunRequest | pb.WatchRunRequest | pb.CancelRunRequest) -> str:
    return parse_line(request.run_id, path="run_id", required=True)


def _before_of(token: str) -> tuple[datetime, str] | None:
    if not token:
        return None
    created_at, run_id = key_of_token(token, str, str)
    try:
        instant = datetime.fromisoformat(created_at)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise InvalidArgument.of_field("page_token", "must be a token that this method gave")
    return instant, run_id


def _token_of(run: Run) -> str:
    created_at, run_id = order_of(run)
    return page_token(created_at.isoformat(), run_id)
