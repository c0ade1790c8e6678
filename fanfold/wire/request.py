"""Requests of runs, as messages and in the form in which they are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from fanfold.model.step import AgentStepSpec
from fanfold.parts import LargeTexts
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1 import step_pb2
from fanfold.wire.ahead import batches_with_parts
from fanfold.wire.encoded import spec_to_bytes
from fanfold.wire.splice import holes_for, sized
from fanfold.wire.step import spec_from_proto, spec_to_proto
from fanfold.wire.unknown import has_unknown

_STEP = holes_for(pb.StepBatch, "steps")

_Request = TypeVar("_Request", pb.RunRequest, pb.StartRunRequest)


def specs_to_bytes(specs: Sequence[AgentStepSpec]) -> bytes:
    """Steps as bytes; what several calls give, one after the other, is the same as what one call gives for all."""
    return b"".join(_STEP % sized(spec_to_bytes(spec)) for spec in specs)


def run_requests(opening: pb.RunOpen, specs: Sequence[AgentStepSpec]) -> Iterator[pb.RunRequest]:
    """The messages that ask for a fan-out."""
    return _requests(pb.RunRequest, opening, specs)


def start_requests(opening: pb.RunOpen, specs: Sequence[AgentStepSpec]) -> Iterator[pb.StartRunRequest]:
    """The messages that ask for a detached fan-out."""
    return _requests(pb.StartRunRequest, opening, specs)


def _requests(kind: type[_Request], opening: pb.RunOpen, specs: Sequence[AgentStepSpec]) -> Iterator[_Request]:
    def write(spec: AgentStepSpec, message: step_pb2.AgentStepSpec, large: LargeTexts) -> None:
        spec_to_proto(spec, message, large)

    yield kind(open=opening)
    yield from batches_with_parts(specs, kind, lambda request, _: request.steps.steps, write)


def specs_from_bytes(data: bytes) -> list[AgentStepSpec] | None:
    """The steps that were kept; None if there is more to them than this release knows."""
    batch = pb.StepBatch.FromString(data)
    if has_unknown(batch):
        return None
    schemas: dict[str, object] = {}
    return [spec_from_proto(step, schemas=schemas) for step in batch.steps]
