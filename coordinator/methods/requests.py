"""Requests that come as streams, read to their end before anything starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from coordinator.methods.callers import ANONYMOUS
from coordinator.runs.checks import RequestChecks
from coordinator.runs.opening import Opening
from fanfold.errors import FanfoldError, InvalidArgument, Unimplemented
from fanfold.model.step import AgentStepSpec
from fanfold.model.validation import parse_line, parse_specs
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.wire.run import detail_from_proto
from fanfold.wire.step import spec_from_proto

Requests = AsyncIterator[pb.RunRequest]
Request = TypeVar("Request")

NEXT_MESSAGE_SECONDS = 0.5
MAX_REFUSED_MESSAGES = 1000
"""How long and for how much more of a request that is refused already is waited: as long as it keeps coming."""


class RunRequested(NamedTuple):
    """A fan-out that was asked for."""

    message: pb.RunOpen
    opening: Opening
    specs: list[AgentStepSpec]


async def read_run(checks: RequestChecks, requests: Requests) -> RunRequested:
    """The request, or why it is refused."""
    return await to_the_last(requests, _read_run(checks, requests))


async def to_the_last(requests: AsyncIterator[Any], reading: Awaitable[Request]) -> Request:
    """What `reading` gives. A refusal is told after the last message, or gRPC clients would fail at sending it."""
    try:
        return await reading
    except FanfoldError:
        with suppress(TimeoutError, StopAsyncIteration):
            for _ in range(MAX_REFUSED_MESSAGES):
                async with asyncio.timeout(NEXT_MESSAGE_SECONDS):
                    await anext(requests)
        raise


async def _read_run(checks: RequestChecks, requests: Requests) -> RunRequested:
    message = pb.RunOpen()
    opening: Opening | None = None
    specs: list[AgentStepSpec] = []
    schemas: dict[str, Any] = {}
    size = 0
    async for request in requests:
        match request.WhichOneof("message"):
            case "open":
                if opening is not None:
                    raise InvalidArgument.of_field("open", "must be sent once")
                message, opening = request.open, _opening_of(request.open)
            case "steps":
                if opening is None:
                    raise InvalidArgument.of_field("open", "must be sent before steps")
                message_size = request.ByteSize()
                size += message_size
                checks.refuse_oversize(len(specs) + len(request.steps.steps), size)
                if checks.may_hold_fat_step(message_size):
                    for index, step in enumerate(request.steps.steps, start=len(specs)):
                        checks.refuse_fat_step(step.ByteSize(), path=f"steps[{index}]")
                specs += _specs_of(request.steps, first_index=len(specs), schemas=schemas)
            case _:
                raise InvalidArgument("a message must have open or steps")
    if opening is None:
        raise InvalidArgument.of_field("open", "is required")
    _refuse_other_count(opening, len(specs))
    return RunRequested(message, opening, specs)


def _refuse_other_count(opening: Opening, count: int) -> None:
    if opening.total_steps is not None and opening.total_steps != count:
        raise InvalidArgument.of_field(
            "steps", f"must be {opening.total_steps:,} (parallel.total_steps), not {count:,}"
        )
    if opening.as_before and count:
        raise InvalidArgument.of_field("steps", "must be none with parallel.as_before")


def _opening_of(message: pb.RunOpen) -> Opening:
    match message.WhichOneof("kind"):
        case "parallel":
            pass
        case "script":
            raise Unimplemented("workflow scripts are not in this release")
        case _:
            raise InvalidArgument.of_field("open.kind", "is required: parallel or script")
    workflow_id = parse_line(message.workflow_id, path="open.workflow_id")
    if message.parallel.as_before and not workflow_id:
        raise InvalidArgument.of_field("open.workflow_id", "is required with parallel.as_before")
    if message.HasField("budget_tokens"):
        raise Unimplemented("budgets (open.budget_tokens) are not in this release")
    return Opening(
        owner=ANONYMOUS,
        request_id=parse_line(message.request_id, path="open.request_id"),
        detail=detail_from_proto(message.events),
        workflow_id=workflow_id,
        from_sequence=message.from_sequence,
        from_run=message.from_run,
        total_steps=message.parallel.total_steps if message.parallel.HasField("total_steps") else None,
        as_before=message.parallel.as_before,
    )


def _specs_of(batch: pb.StepBatch, *, first_index: int, schemas: dict[str, Any]) -> list[AgentStepSpec]:
    specs = [
        spec_from_proto(step, path=f"steps[{index}]", schemas=schemas)
        for index, step in enumerate(batch.steps, start=first_index)
    ]
    return parse_specs(specs, first_index=first_index)
