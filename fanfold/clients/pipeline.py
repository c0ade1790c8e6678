"""The caller's side of a pipeline: what it sends, and the questions that it is asked meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import grpc.aio

from fanfold.feed import Feed
from fanfold.model.pipeline import StageAnswer, StageRequest
from fanfold.model.run import RunEnded, RunEvent, RunStepEvent
from fanfold.parts import LargeTexts, Texts
from fanfold.rpc.status import from_rpc_error
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.wire.ahead import PartsAhead, batches_with_parts
from fanfold.wire.parts import event_with_texts
from fanfold.wire.pipeline import answer_to_proto, request_from_proto
from fanfold.wire.run import run_event_from_proto

MAX_BATCH_CHARACTERS = 262_144
"""A batch takes no further item after this; each character is up to 4 bytes."""

Answers = Feed[tuple[int, StageAnswer]]
"""Answers on their way to the coordinator, each with the id of its request."""

OnRequest = Callable[[StageRequest, Callable[[StageAnswer], None]], None]
"""Takes a stage request, and what to call with its answer; must not block and must not raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShape:
    """Items, as JSON texts, through so many stages.

    `stage_timeout` is in seconds, and `most_requests` how many stage requests the caller works on at once.
    """

    items: Sequence[str]
    stages: int
    stage_timeout: float
    most_requests: int


class PipelineCall:
    """Implements `RunCall` over a call of RunPipeline. Stage requests are heard whether its events are read or not."""

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall[Any, pb.RunPipelineResponse],
        server: str,
        answers: Answers,
        on_request: OnRequest,
    ) -> None:
        self._call = call
        self._server = server
        self._answers = answers
        self._on_request = on_request
        self._events: Feed[RunEvent] = Feed()
        self._ahead = PartsAhead()
        self._hearing = asyncio.ensure_future(self._hear())

    async def read(self) -> Sequence[RunEvent]:
        """The next events. Raises FanfoldError as the coordinator answers."""
        return await self._events.read()

    async def close(self) -> None:
        """End the call, if it has not ended."""
        self._answers.close()
        self._call.cancel()
        self._hearing.cancel()
        await asyncio.wait([self._hearing])

    async def _hear(self) -> None:
        error: Exception | None = None
        try:
            async for response in self._call:
                if response.HasField("part"):
                    self._ahead.add(response.part)
                else:
                    self._take(response, self._ahead.taken())
        except grpc.aio.AioRpcError as told:
            error = from_rpc_error(told, self._server)
        except Exception as raised:  # whoever reads is told, as nobody waits for this task
            error = raised
        finally:
            self._events.close(error)
            self._answers.close()

    def _take(self, response: pb.RunPipelineResponse, texts: Texts) -> None:
        """Take what a response has; an outcome whose texts came ahead is alone in it."""
        for message in response.events:
            event = run_event_from_proto(message)
            if texts and isinstance(event, RunStepEvent):
                event = replace(event, event=event_with_texts(event.event, texts))
            if event is not None:
                self._events.push(event)
            if isinstance(event, RunEnded):
                self._answers.close()
        for request in response.requests:
            answer = partial(_push, self._answers, request.id)
            self._on_request(request_from_proto(request, texts), answer)


def _push(answers: Answers, request_id: int, answer: StageAnswer) -> None:
    answers.push((request_id, answer))


async def pipeline_requests(
    opening: pb.PipelineOpen, items: Sequence[str], answers: Answers
) -> AsyncGenerator[pb.RunPipelineRequest, None]:
    """The messages of the call, until the answers are closed."""
    yield pb.RunPipelineRequest(open=opening)
    for batch in _item_batches(items):
        yield pb.RunPipelineRequest(items=batch)
    while gathered := await answers.read():
        for request in batches_with_parts(gathered, pb.RunPipelineRequest, _answers_of, _write_answer):
            yield request


def _item_batches(items: Sequence[str]) -> Iterator[pb.ItemBatch]:
    batch, size = pb.ItemBatch(), 0
    for item in items:
        batch.items_json.append(item)
        size += len(item)
        if size >= MAX_BATCH_CHARACTERS:
            yield batch
            batch, size = pb.ItemBatch(), 0
    batch.last = True
    yield batch


def _answers_of(request: pb.RunPipelineRequest, _answered: object) -> Any:
    return request.answers.answers


def _write_answer(answered: tuple[int, StageAnswer], message: pb.StageAnswer, large: LargeTexts) -> None:
    request_id, answer = answered
    answer_to_proto(request_id, answer, message, large)
