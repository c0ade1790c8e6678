"""A run's events as callers are told them: large outcomes in parts ahead, or cut for those who take no parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from google.protobuf.message import Message

from fanfold.model.run import RunEvent, RunStepEvent
from fanfold.parts import RUN_TEXT_BYTES, RUN_WHOLE_BYTES, LargeTexts
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1 import run_pb2
from fanfold.wire.ahead import batches_with_parts
from fanfold.wire.batches import batches
from fanfold.wire.parts import within
from fanfold.wire.run import event_from_bytes, event_into

Response = TypeVar("Response", pb.RunResponse, pb.WatchRunResponse)


def run_responses(
    events: Sequence[RunEvent | bytes], new_response: Callable[[], Response], *, takes_parts: bool
) -> Iterator[Response]:
    """Events of a run, or encoded ones, in messages to one caller."""

    def write(event: RunEvent | bytes, message: run_pb2.RunEvent, large: LargeTexts) -> None:
        event_into(readable(event, RUN_TEXT_BYTES), message, large)

    def add(event: RunEvent | bytes, response: Response) -> Message:
        return event_into(whole(event), response.events.add())

    if takes_parts:
        return batches_with_parts(events, new_response, lambda response, _: response.events, write)
    return batches(events, new_response, add)


def readable(event: RunEvent | bytes, max_bytes: int) -> RunEvent | bytes:
    """The event; an encoded one decoded if it may have a larger text than that, which is then to be taken out of it."""
    if isinstance(event, bytes) and len(event) > max_bytes:
        return event_from_bytes(event) or event
    return event


def whole(event: RunEvent | bytes) -> RunEvent | bytes:
    """The event for a caller who takes no parts; a larger outcome than any client takes is cut."""
    event = readable(event, RUN_WHOLE_BYTES)
    if isinstance(event, RunStepEvent):
        event = replace(event, event=within(event.event, RUN_WHOLE_BYTES))
    return event
