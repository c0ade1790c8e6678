"""Methods about runs and single steps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from google.protobuf.message import Message

from coordinator.methods.callers import ANONYMOUS, Context
from coordinator.methods.requests import read_run
from coordinator.runs.checks import RequestChecks
from coordinator.runs.opening import Opening
from coordinator.runs.runs import Runs
from fanfold.model.run import RunEvent
from fanfold.model.step import StepEvent
from fanfold.model.validation import parse_request_id, parse_spec
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1.coordinator_pb2_grpc import CoordinatorServicer as GeneratedServicer
from fanfold.wire.batches import batches
from fanfold.wire.run import detail_from_proto, event_into
from fanfold.wire.step import event_to_proto, spec_from_proto


class RunMethods(GeneratedServicer):
    """Run, ExecuteStep."""

    _runs: Runs
    _checks: RequestChecks

    async def Run(  # noqa: N802 - named by the proto
        self, request_iterator: AsyncIterator[pb.RunRequest], context: Context
    ) -> AsyncIterator[pb.RunResponse]:
        """Run a fan-out while the stream lasts."""
        opening, specs = await read_run(self._checks, aiter(request_iterator))
        async with self._runs.parallel(opening, specs) as feed:
            while events := await feed.read():
                for response in _run_responses(events):
                    yield response

    async def ExecuteStep(  # noqa: N802
        self, request: pb.CoordinatorExecuteStepRequest, context: Context
    ) -> AsyncIterator[pb.CoordinatorExecuteStepResponse]:
        """Place and run one step while the stream lasts."""
        self._checks.refuse_fat_step(request.step.ByteSize(), path="step")
        spec = parse_spec(spec_from_proto(request.step), path="step")
        opening = Opening(
            owner=ANONYMOUS,
            request_id=parse_request_id(request.request_id),
            detail=detail_from_proto(request.events),
        )
        async with self._runs.step(opening, spec) as feed:
            while events := await feed.read():
                for response in _step_responses(events):
                    yield response


def _run_responses(events: Sequence[RunEvent | bytes]) -> Iterator[pb.RunResponse]:
    def add(event: RunEvent | bytes, response: pb.RunResponse) -> Message:
        return event_into(event, response.events.add())

    return batches(events, pb.RunResponse, add)


def _step_responses(events: Sequence[StepEvent]) -> Iterator[pb.CoordinatorExecuteStepResponse]:
    def add(event: StepEvent, response: pb.CoordinatorExecuteStepResponse) -> Message:
        return event_to_proto(event, response.events.add())

    return batches(events, pb.CoordinatorExecuteStepResponse, add)
