"""Requests that come as streams, read to their end before anything starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from coordinator.runs.checks import RequestChecks
from coordinator.runs.opening import Opening
from fanfold.errors import FanfoldError, FieldViolation, InvalidArgument
from fanfold.model.script import Script
from fanfold.model.step import AgentStepSpec
from fanfold.model.validation import parse_budget, parse_line, parse_specs
from fanfold.parts import TextField
from fanfold.rpc.call import current_principal
from fanfold.rpc.traced import current_trace
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.wire.ahead import PartsAhead
from fanfold.wire.parts import spec_with_texts
from fanfold.wire.run import detail_from_proto
from fanfold.wire.script import script_from_proto
from fanfold.wire.step import spec_from_proto

Requests = AsyncIterator[pb.RunRequest] | AsyncIterator[pb.StartRunRequest]
Request = TypeVar("Request")

NEXT_MESSAGE_SECONDS = 0.5
MAX_REFUSED_MESSAGES = 1000
"""How long and for how much more of a request that is refused already is waited: as long as it keeps coming."""


class RunRequested(NamedTuple):
    """A fan-out or a script that was asked for; of a script also what is wrong with its form."""

    message: pb.RunOpen
    opening: Opening
    specs: list[AgentStepSpec]
    script: Script | None = None
    wrong: Sequence[FieldViolation] = ()


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
    message: pb.RunOpen | None = None
    steps = _Steps(checks)
    async for request in requests:
        kind = request.WhichOneof("message")
        if kind == "open":
            if message is not None:
                raise InvalidArgument.of_field("open", "must be sent once")
            message, opening = request.open, _opening_of(request.open)
        elif message is None:
            raise InvalidArgument.of_field("open", "must be sent before all else")
        elif kind == "steps":
            steps.take_steps(request)
        elif kind == "part":
            steps.take_part(request)
        else:
            raise InvalidArgument("a message must have open, steps or part")
    if message is None:
        raise InvalidArgument.of_field("open", "is required")
    steps.end()
    _refuse_other_count(opening, len(steps.specs))
    if not message.HasField("script"):
        return RunRequested(message, opening, steps.specs)
    if steps.specs:
        raise InvalidArgument.of_field("steps", "must be none with open.script")
    script, wrong = script_from_proto(message.script, opening.owner)
    return RunRequested(message, opening, [], script, wrong)


class _Steps:
    """The steps of a request as far as it has come."""

    def __init__(self, checks: RequestChecks) -> None:
        self.specs: list[AgentStepSpec] = []
        self._checks = checks
        self._schemas: dict[str, Any] = {}
        self._ahead = PartsAhead(TextField.PROMPT, TextField.OUTPUT_SCHEMA_JSON)
        self._size = 0

    def take_steps(self, request: pb.RunRequest | pb.StartRunRequest) -> None:
        """Take steps; what has come ahead belongs to the first of them."""
        checks, first, batch = self._checks, len(self.specs), request.steps.steps
        message_size = request.ByteSize()
        self._size += message_size
        checks.refuse_oversize(first + len(batch), self._size)
        if checks.may_hold_fat_step(message_size):
            for index, step in enumerate(batch, start=first):
                checks.refuse_fat_step(step.ByteSize(), path=f"steps[{index}]")
        specs = [
            spec_from_proto(step, path=f"steps[{index}]", schemas=self._schemas)
            for index, step in enumerate(batch, start=first)
        ]
        if self._ahead and specs:
            texts = self._ahead.taken()
            specs[0] = spec_with_texts(specs[0], texts, path=f"steps[{first}]", schemas=self._schemas)
        self.specs += parse_specs(specs, first_index=first)

    def take_part(self, request: pb.RunRequest | pb.StartRunRequest) -> None:
        """Take a part of a text of the step that follows next."""
        self._ahead.add(request.part)
        self._size += request.ByteSize()
        self._checks.refuse_oversize(len(self.specs), self._size)
        self._checks.refuse_fat_step(self._ahead.size, path=f"steps[{len(self.specs)}]")

    def end(self) -> None:
        """There is nothing more."""
        self._ahead.refuse_rest()


def _refuse_other_count(opening: Opening, count: int) -> None:
    if opening.total_steps is not None and opening.total_steps != count:
        raise InvalidArgument.of_field(
            "steps", f"must be {opening.total_steps:,} (parallel.total_steps), not {count:,}"
        )
    if opening.as_before and count:
        raise InvalidArgument.of_field("steps", "must be none with parallel.as_before")


def _opening_of(message: pb.RunOpen) -> Opening:
    match message.WhichOneof("kind"):
        case "parallel" | "script":
            pass
        case _:
            raise InvalidArgument.of_field("open.kind", "is required: parallel or script")
    workflow_id = parse_line(message.workflow_id, path="open.workflow_id")
    if message.parallel.as_before and not workflow_id:
        raise InvalidArgument.of_field("open.workflow_id", "is required with parallel.as_before")
    return Opening(
        owner=current_principal().name,
        request_id=parse_line(message.request_id, path="open.request_id"),
        detail=detail_from_proto(message.events),
        takes_parts=message.takes_parts,
        workflow_id=workflow_id,
        budget_tokens=budget_of(message),
        from_sequence=message.from_sequence,
        from_run=message.from_run,
        total_steps=message.parallel.total_steps if message.parallel.HasField("total_steps") else None,
        as_before=message.parallel.as_before,
        trace=current_trace(),
    )


def budget_of(message: pb.RunOpen | pb.PipelineOpen) -> int | None:
    """The tokens that the run may spend, if it has a budget (C13). Raises InvalidArgument for a number beyond any."""
    return parse_budget(message.budget_tokens, path="open.budget_tokens") if message.HasField("budget_tokens") else None
