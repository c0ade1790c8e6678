"""A run's events as callers are told them: large outcomes in parts ahead, or cut for those who take no parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from coordinator.runs.questions import Questions
from coordinator.runs.told import Told
from fanfold.model.pipeline import StageFailure, StageRequest
from fanfold.model.run import RunEnded, RunEvent, RunStepEvent
from fanfold.parts import RUN_TEXT_BYTES, RUN_WHOLE_BYTES, LargeTexts
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1 import run_pb2
from fanfold.wire.ahead import batches_with_parts
from fanfold.wire.batches import batches, encoded_batches
from fanfold.wire.parts import size_of, within
from fanfold.wire.pipeline import request_to_proto
from fanfold.wire.run import event_from_bytes, event_into, event_to_bytes

Response = TypeVar("Response", pb.RunResponse, pb.WatchRunResponse)


def run_responses(events: Sequence[Told], new_response: type[Response], *, takes_parts: bool) -> Iterator[Response]:
    """Events of a run in messages to one caller."""
    most = RUN_TEXT_BYTES if takes_parts else RUN_WHOLE_BYTES
    for are_small, some in groupby(events, lambda event: isinstance(event, bytes) and len(event) <= most):
        if are_small:
            yield from encoded_batches(cast("Iterator[bytes]", some), "events", new_response)
        elif takes_parts:
            yield from batches_with_parts(some, new_response, lambda response, _: response.events, _write_large)
        else:
            yield from batches(some, new_response, _add_cut)


def _write_large(event: Told, message: run_pb2.RunEvent, large: LargeTexts) -> None:
    event_into(_readable(event, RUN_TEXT_BYTES), message, large)


def _add_cut(event: Told, response: pb.RunResponse | pb.WatchRunResponse) -> Message:
    return event_into(_whole(event), response.events.add())


def without_value(events: Sequence[Told]) -> Sequence[Told]:
    """Events for observers: the end of a script, which is the last of all, is told without its value (C28)."""
    last = events[-1] if events else None
    event = event_from_bytes(last) if isinstance(last, bytes) else None
    if not isinstance(event, RunEnded) or event.script_result is None:
        return events
    return [*events[:-1], event_to_bytes(replace(event, script_result=replace(event.script_result, value=None)))]


def pipeline_responses(
    told: Sequence[Told | StageRequest], questions: Questions, *, takes_parts: bool
) -> Iterator[pb.RunPipelineResponse]:
    """A pipeline's events and stage requests in messages to its caller; the requests' time begins so."""

    def write(one: Told | StageRequest, message: Any, large: LargeTexts | None = None) -> Message:
        if isinstance(one, StageRequest):
            questions.sent(one)
            return request_to_proto(one, message, large)
        return event_into(_whole(one) if large is None else _readable(one, RUN_TEXT_BYTES), message, large)

    def add(one: Told | StageRequest, response: pb.RunPipelineResponse) -> Message:
        return write(one, _messages_of(response, one).add())

    due = [one for one in told if not isinstance(one, StageRequest) or _is_due(one, questions, takes_parts=takes_parts)]
    if takes_parts:
        return batches_with_parts(due, pb.RunPipelineResponse, _messages_of, write)
    return batches(due, pb.RunPipelineResponse, add)


def _messages_of(response: pb.RunPipelineResponse, one: Told | StageRequest) -> Any:
    return response.requests if isinstance(one, StageRequest) else response.events


def _is_due(request: StageRequest, questions: Questions, *, takes_parts: bool) -> bool:
    """Whether to send a request: not if nobody waits for its answer, or the caller cannot take what it is about."""
    size = 0 if takes_parts or request.previous is None else size_of(request.previous)
    if size > RUN_WHOLE_BYTES:
        limit = f"its caller takes no parts and so at most {RUN_WHOLE_BYTES:,}"
        questions.answer(request.id, StageFailure(f"the outcome before has {size:,} bytes, and {limit}"))
    return questions.is_open(request)


def _readable(event: Told, max_bytes: int) -> RunEvent | bytes:
    """The event, decoded if it may have a larger text than that, which is then to be taken out of it."""
    return (event_from_bytes(event) or event) if isinstance(event, bytes) and len(event) > max_bytes else event


def _whole(told: Told) -> RunEvent | bytes:
    """The event for a caller who takes no parts; a larger outcome than any client takes is cut."""
    event = _readable(told, RUN_WHOLE_BYTES)
    if isinstance(event, RunStepEvent):
        event = replace(event, event=within(event.event, RUN_WHOLE_BYTES))
    return event
