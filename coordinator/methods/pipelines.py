"""The method about pipelines, whose caller answers for their stages while they run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from coordinator.methods.answers import pipeline_responses
from coordinator.methods.callers import Context
from coordinator.methods.forwarding import Forwarding
from coordinator.methods.requests import budget_of, to_the_last
from coordinator.runs.checks import RequestChecks
from coordinator.runs.durable import HeldElsewhere
from coordinator.runs.log import moved
from coordinator.runs.opening import Opening
from coordinator.runs.pipelines import PipelineCall, PipelineRequest
from coordinator.runs.runs import Runs
from fanfold.background import background
from fanfold.errors import FanfoldError, InvalidArgument
from fanfold.model.checkpoint import hash_of_item
from fanfold.model.checks import WEEK_SECONDS
from fanfold.model.pipeline import STAGE_TIMEOUT, StageAnswer, StageFailure
from fanfold.model.step import AgentStepSpec
from fanfold.model.validation import parse_line, parse_spec
from fanfold.parts import TextField
from fanfold.rpc.call import current_principal
from fanfold.rpc.traced import current_trace
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1.coordinator_pb2_grpc import CoordinatorServicer as GeneratedServicer
from fanfold.v1.step_pb2 import TextPart
from fanfold.wire.ahead import PartsAhead
from fanfold.wire.parts import spec_with_texts
from fanfold.wire.pipeline import answer_from_proto
from fanfold.wire.run import detail_from_proto
from fanfold.wire.time import seconds_from_proto
from fanfold.wire.values import json_from_text

DEFAULT_REQUESTS = 64
MOST_REQUESTS = 1_000
"""Stage requests at once: unless the caller says otherwise, and whatever it says."""

LAST_WORDS_SECONDS = 1.0
"""How long a caller may take to close its side of the stream once it was told the run's end."""

BREAK_SECONDS = 0.5
"""How much later than the end of a request stream it may show that the connection broke, which cancels the call."""

HUNG_UP = "its caller closed its side of the stream before the run had ended"
"""Why such a run is cancelled."""

Requests = AsyncIterator[pb.RunPipelineRequest]


class PipelineMethods(GeneratedServicer):
    """RunPipeline."""

    _runs: Runs
    _checks: RequestChecks
    _forwarding: Forwarding

    async def RunPipeline(  # noqa: N802 - named by the proto
        self, request_iterator: AsyncIterator[pb.RunPipelineRequest], context: Context
    ) -> AsyncIterator[pb.RunPipelineResponse]:
        """Run a pipeline while the stream lasts."""
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        try:
            opening, request = await to_the_last(requests, self._read_request(first, requests))
        except HeldElsewhere as elsewhere:
            assert first is not None
            there = self._forwarding.stream(
                elsewhere.address,
                context,
                lambda stub, metadata: stub.RunPipeline(_rejoined(first, requests), metadata=metadata),
            )
            async with there as responses:
                async for response in responses:
                    yield response
            return
        async with self._pipeline(opening, request) as call:
            caller = _Caller(self._checks, requests, call)
            async with background(caller.hear()):
                while told := await call.source.read():
                    for response in pipeline_responses(told, call.questions, takes_parts=opening.takes_parts):
                        yield response
                await caller.leave()

    @asynccontextmanager
    async def _pipeline(self, opening: Opening, request: PipelineRequest) -> AsyncIterator[PipelineCall]:
        """The pipeline while the block lasts. One that has moved since cannot be passed on: its items were read."""
        try:
            async with self._runs.pipeline(opening, request) as call:
                yield call
        except HeldElsewhere:
            raise moved() from None

    async def _read_request(
        self, first: pb.RunPipelineRequest | None, requests: Requests
    ) -> tuple[Opening, PipelineRequest]:
        if first is None or first.WhichOneof("message") != "open":
            raise InvalidArgument.of_field("open", "must be sent first")
        message = first.open
        opening = _opening_of(message)
        self._checks.refuse_stages(message.stages, path="open.stages")
        if opening.workflow_id:
            await self._runs.durable.is_known(opening)  # passes it on before the items, if it is not held here
        request = PipelineRequest(
            item_hashes=await _read_items(self._checks, requests),
            stages=message.stages,
            stage_timeout=_stage_timeout_of(message),
            most_requests=min(message.max_requests or DEFAULT_REQUESTS, MOST_REQUESTS),
        )
        return opening, request


async def _rejoined(first: pb.RunPipelineRequest, rest: Requests) -> Requests:
    yield first
    async for request in rest:
        yield request


async def _read_items(checks: RequestChecks, requests: Requests) -> list[str]:
    """The hash of each item, when the last one has come."""
    hashes: list[str] = []
    size = 0
    async for request in requests:
        if request.WhichOneof("message") != "items":
            raise InvalidArgument("items must follow, until a batch says that it is the last")
        batch = request.items.items_json
        size += request.ByteSize()
        checks.refuse_oversize_items(len(hashes) + len(batch), size)
        for index, text in enumerate(batch, start=len(hashes)):
            hashes.append(hash_of_item(json_from_text(text, path=f"items[{index}]")))
        if request.items.last:
            return hashes
    raise InvalidArgument.of_field("items", "ended without a batch that says that it is the last")


def _opening_of(message: pb.PipelineOpen) -> Opening:
    return Opening(
        owner=current_principal().name,
        request_id=parse_line(message.request_id, path="open.request_id"),
        detail=detail_from_proto(message.events),
        workflow_id=parse_line(message.workflow_id, path="open.workflow_id"),
        budget_tokens=budget_of(message),
        from_sequence=message.from_sequence,
        from_run=message.from_run,
        takes_parts=message.takes_parts,
        trace=current_trace(),
    )


def _stage_timeout_of(message: pb.PipelineOpen) -> float:
    if not message.HasField("stage_timeout"):
        return STAGE_TIMEOUT
    seconds = seconds_from_proto(message.stage_timeout)
    if not 0 < seconds <= WEEK_SECONDS:
        raise InvalidArgument.of_field("open.stage_timeout", f"must be above 0 and at most {WEEK_SECONDS:,.0f} seconds")
    return seconds


class _Caller:
    """The caller's side of a pipeline that runs: its answers, until it closes the stream or says what it must not."""

    def __init__(self, checks: RequestChecks, requests: Requests, call: PipelineCall) -> None:
        self._checks = checks
        self._requests = requests
        self._call = call
        self._ahead = _parts_of_steps()
        self._bytes_ahead = 0
        self._error: FanfoldError | None = None
        self._has_left = asyncio.Event()

    async def hear(self) -> None:
        """Hand the answers on. When there can be no more, the run is told; then its events come to an end."""
        try:
            async for request in self._requests:
                match request.WhichOneof("message"):
                    case "part":
                        self._take_part(request.part)
                    case "answers":
                        for message in request.answers.answers:
                            self._call.questions.answer(message.id, self._answer_of(message))
                    case _:
                        raise InvalidArgument("nothing but answers may follow the items")
        except FanfoldError as error:
            # Raised here, it would cancel the call, perhaps while it writes; then it could never be answered.
            self._error = error
            self._call.hang_up(f"its caller is wrong: {error.message}")
            self._has_left.set()
        else:
            self._has_left.set()
            # A stream that broke looks like one that was closed; a journaled run waits for the caller of the former.
            await asyncio.sleep(BREAK_SECONDS)
            self._call.hang_up(HUNG_UP)

    def _take_part(self, part: TextPart) -> None:
        """Take a part of a text of the step that is answered next; nothing of one that is too large already."""
        self._bytes_ahead += len(part.piece)
        if not self._checks.may_hold_fat_step(self._bytes_ahead):
            self._ahead.add(part)

    def _answer_of(self, message: pb.StageAnswer) -> StageAnswer:
        """The answer, with texts that came ahead of it; a wrong step is the stage's failure (C15)."""
        ahead, self._ahead = self._ahead, _parts_of_steps()
        size, self._bytes_ahead = message.step.ByteSize() + self._bytes_ahead, 0
        try:
            self._checks.refuse_fat_step(size, path="step")
            answer = answer_from_proto(message)
            if not isinstance(answer, AgentStepSpec):
                return answer
            return parse_spec(spec_with_texts(answer, ahead.taken()) if ahead else answer)
        except InvalidArgument as error:
            return StageFailure(error.message)

    async def leave(self) -> None:
        """Let the caller close its side first: a gRPC client that sends to an ended call takes that for its failure.

        Raises:
            FanfoldError: what it did wrong, now that the run has ended of it.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self._has_left.wait()
        if self._error is not None:
            raise self._error


def _parts_of_steps() -> PartsAhead:
    return PartsAhead(TextField.PROMPT, TextField.OUTPUT_SCHEMA_JSON)
