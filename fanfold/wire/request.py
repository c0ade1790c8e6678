"""Requests of runs, in the form in which they are kept."""

from __future__ import annotations

from collections.abc import Sequence

from fanfold.model.step import AgentStepSpec
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.wire.step import spec_from_proto, spec_to_proto


def specs_to_bytes(specs: Sequence[AgentStepSpec]) -> bytes:
    """Steps as bytes; what several calls give, one after the other, is the same as what one call gives for all."""
    batch = pb.StepBatch()
    for spec in specs:
        spec_to_proto(spec, batch.steps.add())
    return batch.SerializeToString()


def specs_from_bytes(data: bytes) -> list[AgentStepSpec]:
    """The steps that were kept."""
    schemas: dict[str, object] = {}
    return [spec_from_proto(step, schemas=schemas) for step in pb.StepBatch.FromString(data).steps]
