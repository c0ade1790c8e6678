"""Texts that travel apart from their messages (`TextPart` in `step.proto`, `TextSize` in `executor_node.proto`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from fanfold.errors import InvalidArgument
from fanfold.model.step import AgentStepSpec, FailureCode, StepEnded, StepEvent, StepFailure, StepOutcome
from fanfold.parts import Encoded, Piece, TextField, Texts, byte_size
from fanfold.strict_json import compact_json
from fanfold.v1 import executor_node_pb2 as link_pb
from fanfold.v1 import step_pb2
from fanfold.wire.step import STRUCTURED_PATH
from fanfold.wire.values import json_from_text, schema_from_text

_FIELD_TO_PROTO = {field: step_pb2.TextField.Value(f"TEXT_FIELD_{field.name}") for field in TextField}
_FIELD_FROM_PROTO = {number: field for field, number in _FIELD_TO_PROTO.items()}


def part_to_proto(field: TextField, piece: bytes, message: step_pb2.TextPart) -> None:
    """Write a piece of a text into a message."""
    message.field = _FIELD_TO_PROTO[field]
    message.piece = piece


def part_from_proto(
    message: step_pb2.TextPart, fields: Collection[TextField] = tuple(TextField)
) -> tuple[TextField, bytes]:
    """A piece and the text that it belongs to. Raises InvalidArgument unless that is one of `fields`."""
    field = _FIELD_FROM_PROTO.get(message.field)
    if field is None or field not in fields:
        allowed = ", ".join(f"TEXT_FIELD_{each.name}" for each in fields)
        raise InvalidArgument.of_field("part.field", f"must be one of {allowed}")
    return field, message.piece


def piece_to_proto(piece: Piece) -> link_pb.ExecutionPart:
    """A piece as it goes over a link."""
    message = link_pb.ExecutionPart(execution_id=piece.key)
    part_to_proto(piece.field, piece.data, message.part)
    return message


def piece_from_proto(message: link_pb.ExecutionPart) -> Piece:
    """A piece as it came over a link. Raises InvalidArgument for a text that nobody knows."""
    return Piece(message.execution_id, *part_from_proto(message.part))


def follows_into(texts: Encoded, message: link_pb.StartExecution | link_pb.ExecutionUpdate) -> None:
    """Say in a message which texts of it follow in parts."""
    for field, text in texts.items():
        message.follows.add(field=_FIELD_TO_PROTO[field], bytes=len(text))


def follows_from_proto(messages: Iterable[link_pb.TextSize]) -> Mapping[TextField, int]:
    """Which texts of a message follow in parts, and their sizes. Raises InvalidArgument for what makes no sense."""
    sizes = {}
    for message in messages:
        field = _FIELD_FROM_PROTO.get(message.field)
        if field is None or not message.bytes:
            raise InvalidArgument(f"no text can follow: field {message.field} of {message.bytes} bytes")
        sizes[field] = message.bytes
    return sizes


def spec_with_texts(
    spec: AgentStepSpec, texts: Texts, *, path: str = "step", schemas: dict[str, Any] | None = None
) -> AgentStepSpec:
    """The spec with texts that came apart from it; `schemas` as for `spec_from_proto`.

    Raises:
        InvalidArgument: the schema is not JSON, or is nested too deeply.
    """
    schema_text = texts.get(TextField.OUTPUT_SCHEMA_JSON)
    schema = spec.output_schema
    if schema_text is not None:
        schema = schema_from_text(schema_text, f"{path}.output_schema_json", schemas)
    return replace(spec, prompt=texts.get(TextField.PROMPT, spec.prompt), output_schema=schema)


def event_with_texts(event: StepEvent, texts: Texts) -> StepEvent:
    """The event with texts that came apart from it; only an end has such. Raises as `outcome_with_texts`."""
    return replace(event, outcome=outcome_with_texts(event.outcome, texts)) if isinstance(event, StepEnded) else event


def outcome_with_texts(outcome: StepOutcome, texts: Texts) -> StepOutcome:
    """The outcome with texts that came apart from it.

    Raises:
        InvalidArgument: the structured value is not JSON, or is nested too deeply.
    """
    structured, text = outcome.structured, texts.get(TextField.STRUCTURED_JSON)
    if text is not None:
        structured = json_from_text(text, path=STRUCTURED_PATH)
    return replace(outcome, output=texts.get(TextField.OUTPUT, outcome.output), structured=structured)


def within(event: StepEvent, max_bytes: int) -> StepEvent:
    """The event for a peer that does not take texts in parts; see `outcome_within`."""
    if not isinstance(event, StepEnded):
        return event
    outcome = outcome_within(event.outcome, max_bytes)
    return event if outcome is event.outcome else replace(event, outcome=outcome)


def size_of(outcome: StepOutcome) -> int:
    """Bytes of an outcome's texts."""
    structured = 0 if outcome.structured is None else len(compact_json(outcome.structured).encode())
    return byte_size(outcome.output) + structured


def outcome_within(outcome: StepOutcome, max_bytes: int) -> StepOutcome:
    """The outcome if its texts have no more than so many bytes; else they are cut, and the step has failed by that."""
    size = size_of(outcome)
    if size <= max_bytes:
        return outcome
    why = f"the outcome has {size:,} bytes, and who reads it takes no parts and so at most {max_bytes:,}"
    return replace(
        outcome,
        output=outcome.output.encode()[:max_bytes].decode(errors="ignore"),
        structured=None,
        success=False,
        failure=outcome.failure or StepFailure(code=FailureCode.PAYLOAD_TOO_LARGE, message=why),
    )
