"""What a coordinator does for its callers, over gRPC (`fanfold.v1.Coordinator`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import grpc.aio

from fanfold.clients.pipeline import Answers, OnRequest, PipelineCall, PipelineShape, pipeline_requests
from fanfold.clients.run_call import EventCall, RunCall
from fanfold.errors import FailedPrecondition
from fanfold.model.checkpoint import WorkflowCheckpoint
from fanfold.model.node import NodesChanged, NodeView
from fanfold.model.run import EventDetail, Run, RunState, RunStepEvent
from fanfold.model.script import Script
from fanfold.model.step import AgentStepSpec, StepEvent
from fanfold.parts import RUN_TEXT_BYTES, LargeTexts
from fanfold.rpc.channels import open_channel
from fanfold.rpc.credentials import NO_CREDENTIALS, Credentials
from fanfold.rpc.status import from_rpc_error
from fanfold.rpc.traced import own_trace_metadata
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1.coordinator_pb2_grpc import CoordinatorStub
from fanfold.wire.ahead import PartsAhead
from fanfold.wire.checkpoint import CheckpointReader, checkpoint_messages
from fanfold.wire.node import view_from_proto
from fanfold.wire.parts import event_with_texts
from fanfold.wire.request import run_requests, start_requests
from fanfold.wire.run import detail_to_proto, run_from_proto, state_to_proto
from fanfold.wire.script import script_to_proto
from fanfold.wire.step import event_from_proto, spec_to_proto
from fanfold.wire.time import set_duration

if TYPE_CHECKING:
    from fanfold.v1.coordinator_pb2_grpc import CoordinatorAsyncStub


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a run is about besides its steps or items. Without a workflow id it ends with its call."""

    request_id: str = ""
    workflow_id: str = ""
    budget_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Where reading goes on: the run, if it is known, and the number of its next event; 0 is from the beginning."""

    run_id: str = ""
    sequence: int = 0


Opening = TypeVar("Opening", pb.RunOpen, pb.PipelineOpen)

NO_TERMS = Terms()
BEGINNING = Bookmark()


class CoordinatorClient:
    """A connection to one coordinator, to be entered. Every method raises FanfoldError as the coordinator answers."""

    def __init__(self, server: str, credentials: Credentials = NO_CREDENTIALS) -> None:
        self.server = server
        self._channel = open_channel(server, field="server", credentials=credentials)
        self._stub: CoordinatorAsyncStub = CoordinatorStub(self._channel)
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        await self._channel.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What a call fails with, as the error that it stands for."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self.server) from None

    def _open_stub(self) -> CoordinatorAsyncStub:
        if self._closed:
            raise FailedPrecondition("this mesh object is closed; use it within its `with` block")
        return self._stub

    def parallel(
        self,
        specs: Sequence[AgentStepSpec],
        terms: Terms = NO_TERMS,
        *,
        detail: EventDetail = EventDetail.OUTCOMES,
        bookmark: Bookmark = BEGINNING,
    ) -> RunCall:
        """Begin a fan-out, or go on reading what an earlier call with the same request id has begun."""
        opening = _opening(pb.RunOpen, terms, detail, bookmark)
        opening.parallel.total_steps = len(specs)
        # Made before the call: what cannot be put into a message is raised here, and not inside gRPC.
        requests = list(run_requests(opening, specs))
        return self._run(requests)

    def parallel_as_before(
        self, terms: Terms, *, detail: EventDetail = EventDetail.OUTCOMES, bookmark: Bookmark = BEGINNING
    ) -> RunCall:
        """As `parallel`, with the steps that the workflow's last run was asked for."""
        opening = _opening(pb.RunOpen, terms, detail, bookmark)
        opening.parallel.as_before = True
        return self._run([pb.RunRequest(open=opening)])

    def script(
        self,
        script: Script,
        terms: Terms = NO_TERMS,
        *,
        detail: EventDetail = EventDetail.OUTCOMES,
        bookmark: Bookmark = BEGINNING,
    ) -> RunCall:
        """Begin a workflow script, or go on reading what an earlier call with the same request id has begun."""
        opening = _opening(pb.RunOpen, terms, detail, bookmark)
        script_to_proto(script, opening.script)
        return self._run([pb.RunRequest(open=opening)])

    def _run(self, requests: Sequence[pb.RunRequest]) -> RunCall:
        return EventCall(self._open_stub().Run(iter(requests), metadata=own_trace_metadata()), self.server)

    async def start_run(self, specs: Sequence[AgentStepSpec], terms: Terms) -> Run:
        """Start a detached fan-out; the run, which can no longer be lost.

        Raises:
            FailedPrecondition: the mesh has no journal or no job registry.
            Unavailable: the registry cannot be reached, or the coordinator; ask again with the same request id.
        """
        opening = _opening(pb.RunOpen, terms, EventDetail.OUTCOMES, BEGINNING)
        opening.parallel.total_steps = len(specs)
        return await self._start(list(start_requests(opening, specs)))

    async def start_script(self, script: Script, terms: Terms) -> Run:
        """Start a detached script. Raises as `start_run`."""
        opening = _opening(pb.RunOpen, terms, EventDetail.OUTCOMES, BEGINNING)
        script_to_proto(script, opening.script)
        return await self._start([pb.StartRunRequest(open=opening)])

    async def _start(self, requests: Sequence[pb.StartRunRequest]) -> Run:
        with self._errors():
            response = await self._open_stub().StartRun(iter(requests), metadata=own_trace_metadata())
        return run_from_proto(response.run)

    def pipeline(
        self,
        shape: PipelineShape,
        on_request: OnRequest,
        terms: Terms = NO_TERMS,
        *,
        detail: EventDetail = EventDetail.OUTCOMES,
        bookmark: Bookmark = BEGINNING,
    ) -> RunCall:
        """Begin a pipeline, whose stages `on_request` answers for until the call is closed."""
        opening = _opening(pb.PipelineOpen, terms, detail, bookmark)
        opening.stages, opening.max_requests = shape.stages, shape.most_requests
        set_duration(opening.stage_timeout, shape.stage_timeout)
        answers = Answers()
        call = self._open_stub().RunPipeline(
            pipeline_requests(opening, shape.items, answers), metadata=own_trace_metadata()
        )
        return PipelineCall(call, self.server, answers, on_request)

    async def get_run(self, run_id: str) -> Run:
        """A run as it is. Raises NotFound for one that is not kept."""
        with self._errors():
            response = await self._open_stub().GetRun(pb.GetRunRequest(run_id=run_id))
        return run_from_proto(response.run)

    async def list_runs(
        self, *, workflow_id: str = "", states: Collection[RunState] = (), page_size: int = 0, limit: int | None = None
    ) -> list[Run]:
        """Runs, newest first, at most `limit` of them. Empty `workflow_id` and `states` mean all."""
        request = pb.ListRunsRequest(workflow_id=workflow_id, states=map(state_to_proto, states), page_size=page_size)
        runs: list[Run] = []
        while True:
            with self._errors():
                response = await self._open_stub().ListRuns(request)
            runs += map(run_from_proto, response.runs)
            if not response.next_page_token or (limit is not None and len(runs) >= limit):
                return runs[:limit]
            request.page_token = response.next_page_token

    def watch_run(self, run_id: str, *, detail: EventDetail, from_sequence: int = 0) -> RunCall:
        """Follow a run's events from a number on; 0 means from the first that is kept."""
        request = pb.WatchRunRequest(
            run_id=run_id, events=detail_to_proto(detail), from_sequence=from_sequence, takes_parts=True
        )
        return EventCall(self._open_stub().WatchRun(request), self.server)

    async def cancel_run(self, run_id: str, reason: str = "") -> Run:
        """Ask a run to stop; the run as it then is. Raises NotFound for one that is not kept."""
        with self._errors():
            response = await self._open_stub().CancelRun(pb.CancelRunRequest(run_id=run_id, reason=reason))
        return run_from_proto(response.run)

    async def dispose_run(self, run_id: str, timeout: float) -> Run:
        """Have a run gone, cancelled if need be, within so many seconds; the run as it ended.

        Raises:
            NotFound: it is not kept.
            DeadlineExceeded: something of it is still there.
        """
        request = pb.DisposeRunRequest(run_id=run_id)
        set_duration(request.timeout, timeout)
        with self._errors():
            response = await self._open_stub().DisposeRun(request)
        return run_from_proto(response.run)

    async def execute_step(
        self, spec: AgentStepSpec, *, detail: EventDetail = EventDetail.PROGRESS, request_id: str = ""
    ) -> AsyncGenerator[StepEvent, None]:
        """Place one step and give its events; closing the iterator cancels the step."""
        request = pb.CoordinatorExecuteStepRequest(
            request_id=request_id, events=detail_to_proto(detail), takes_parts=True
        )
        large = LargeTexts(RUN_TEXT_BYTES)
        spec_to_proto(spec, request.step, large)
        if large:  # only a run's request may have parts
            async with aclosing(self._run_alone(spec, detail, request_id)) as events:
                async for event in events:
                    yield event
            return
        call = self._open_stub().ExecuteStep(request, metadata=own_trace_metadata())
        ahead = PartsAhead()
        try:
            with self._errors():
                async for response in call:
                    if response.HasField("part"):
                        ahead.add(response.part)
                    for message in response.events:
                        told = event_from_proto(message)
                        if told is not None:
                            yield event_with_texts(told, ahead.taken()) if ahead else told
        finally:
            call.cancel()

    async def _run_alone(
        self, spec: AgentStepSpec, detail: EventDetail, request_id: str
    ) -> AsyncGenerator[StepEvent, None]:
        run = self.parallel([spec], Terms(request_id=request_id), detail=detail)
        try:
            while run_events := await run.read():
                for run_event in run_events:
                    if isinstance(run_event, RunStepEvent):
                        yield run_event.event
        finally:
            await run.close()

    async def get_checkpoint(self, workflow_id: str) -> WorkflowCheckpoint:
        """The checkpoint of a workflow.

        Raises:
            NotFound: nothing of it is recorded.
            FailedPrecondition: it is of a newer version, or there is no journal.
        """
        reader = CheckpointReader(workflow_id)
        request = pb.GetCheckpointRequest(workflow_id=workflow_id, takes_parts=True)
        with self._errors():
            async for response in self._open_stub().GetCheckpoint(request):
                reader.take(response)
        return reader.checkpoint()

    async def put_checkpoint(self, checkpoint: WorkflowCheckpoint) -> int:
        """Have a checkpoint kept in place of what is recorded of its workflow; how many records that were.

        Raises:
            InvalidArgument: a record is wrong or was changed; nothing was kept.
            FailedPrecondition: it is of a newer version, or there is no journal.
            Aborted: the workflow runs.
        """
        total = len(checkpoint.records)
        requests = checkpoint_messages(checkpoint, lambda: pb.PutCheckpointRequest(total_records=total), in_parts=True)
        with self._errors():
            response = await self._open_stub().PutCheckpoint(requests)
        return response.records

    async def list_nodes(self) -> list[NodeView]:
        """All nodes that the coordinator knows."""
        views: list[NodeView] = []
        request = pb.ListNodesRequest()
        while True:
            with self._errors():
                response = await self._open_stub().ListNodes(request)
            views += map(view_from_proto, response.nodes)
            if not response.next_page_token:
                return views
            request.page_token = response.next_page_token

    async def watch_nodes(self) -> AsyncGenerator[NodesChanged, None]:
        """All nodes first, then those that change, until the iterator is closed."""
        call = self._open_stub().WatchNodes(pb.WatchNodesRequest())
        try:
            with self._errors():
                async for response in call:
                    yield NodesChanged(
                        nodes=tuple(map(view_from_proto, response.nodes)), forgotten=tuple(response.forgotten)
                    )
        finally:
            call.cancel()


def _opening(kind: type[Opening], terms: Terms, detail: EventDetail, bookmark: Bookmark) -> Opening:
    return kind(
        request_id=terms.request_id,
        workflow_id=terms.workflow_id,
        budget_tokens=terms.budget_tokens,
        events=detail_to_proto(detail),
        from_sequence=bookmark.sequence,
        from_run=bookmark.run_id,
        takes_parts=True,
    )
