"""Requests that come as streams, read to their end before anything starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from coordinator.methods.callers import ANONYMOUS
from coordinator.runs.checks import RequestChecks
from coordinator.runs.opening import Opening
from fanfold.errors import FanfoldError, InvalidArgument, Unimplemented
from fanfold.model.step import AgentStepSpec
from fanfold.model.validation import parse_request_id, parse_specs
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.wire.run import detail_from_proto
from fanfold.wire.step import spec_from_proto

Requests = AsyncIterator[pb.RunRequest]

NEXT_MESSAGE_SECONDS = 0.5
MAX_REFUSED_MESSAGES = 1000
"""How long and for how much more of a request that is refused already is waited: as long as it keeps coming."""


async def read_run(
    checks: RequestChecks, requests: AsyncIterator[pb.RunRequest]
) -> tuple[Opening, list[AgentStepSpec]]:
    """The request, or why it is refused; told after its last message, or gRPC clients would fail at sending it."""
    try:
        return await _read_run(checks, requests)
    except FanfoldError:
        with suppress(TimeoutError, StopAsyncIteration):
            for _ in range(MAX_REFUSED_MESSAGES):
                async with asyncio.timeout(NEXT_MESSAGE_SECONDS):
                    await anext(requests)
        raise


async def _read_run(
    checks: RequestChecks, requests: AsyncIterator[pb.RunRequest]
) -> tuple[Opening, list[AgentStepSpec]]:
    opening: Opening | None = None
    specs: list[AgentStepSpec] = []
    schemas: dict[str, Any] = {}
    size = 0
    async for request in requests:
        match request.WhichOneof("message"):
            case "open":
                if opening is not None:
                    raise InvalidArgument.of_field("open", "must be sent once")
                opening = _opening_of(request.open)
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
    return opening, specs


def _opening_of(message: pb.RunOpen) -> Opening:
    match message.WhichOneof("kind"):
        case "parallel":
            pass
        case "script":
            raise Unimplemented("workflow scripts are not in this release")
        case _:
            raise InvalidArgument.of_field("open.kind", "is required: parallel or script")
    if message.workflow_id:
        raise Unimplemented("resumable runs (open.workflow_id) are not in this release")
    if message.HasField("budget_tokens"):
        raise Unimplemented("budgets (open.budget_tokens) are not in this release")
    return Opening(
        owner=ANONYMOUS,
        request_id=parse_request_id(message.request_id, path="open.request_id"),
        detail=detail_from_proto(message.events),
    )


def _specs_of(batch: pb.StepBatch, *, first_index: int, schemas: dict[str, Any]) -> list[AgentStepSpec]:
    specs = [
        spec_from_proto(step, path=f"steps[{index}]", schemas=schemas)
        for index, step in enumerate(batch.steps, start=first_index)
    ]
    return parse_specs(specs, first_index=first_index)
