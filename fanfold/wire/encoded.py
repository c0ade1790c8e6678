"""What is told of steps, in encoded form: put together (`splice`), and as it came in where it did.

Every step has two events at least, which pass three processes. What most of them have is put together here; whatever
else there may be is set field by field, in `step` and `run`.
"""

from __future__ import annotations

from fanfold.model.step import (
    DEFAULT_MAX_STEPS,
    DEFAULT_POLICY,
    NO_USAGE,
    AgentStepSpec,
    StepEnded,
    StepEvent,
    StepOutcome,
    StepStarted,
)
from fanfold.parts import LINK_TEXT_BYTES
from fanfold.v1 import executor_node_pb2 as node_pb
from fanfold.v1 import step_pb2 as pb
from fanfold.wire.splice import holes_for, known, sized, text, varint
from fanfold.wire.step import event_from_proto, event_to_proto, outcome_to_proto, spec_to_proto
from fanfold.wire.time import time_to_bytes

_SPEC = holes_for(pb.AgentStepSpec, "task_id", "agent", "description", "prompt")
_STARTED = holes_for(pb.StepStarted, "session_id", "node")
_STARTED_EVENT = holes_for(pb.StepEvent, "task_id", "time", "started")
_ENDED = holes_for(pb.StepEnded, "outcome")
_ENDED_EVENT = holes_for(pb.StepEvent, "task_id", "time", "ended")
_OUTCOME_TEXTS = holes_for(pb.StepOutcome, "task_id", "session_id", "agent", "output", "node")
_OUTCOME_REST = holes_for(pb.StepOutcome, "success", "attempts", "started_at", "ended_at")
_UPDATE = holes_for(node_pb.ExecutionUpdate, "execution_id", "event")


def spec_to_bytes(spec: AgentStepSpec) -> bytes:
    """An encoded AgentStepSpec."""
    if (
        spec.max_steps != DEFAULT_MAX_STEPS
        or spec.parent_session_id
        or spec.output_schema is not None
        or spec.policy is not DEFAULT_POLICY
        or spec.unknown_fields
    ):
        return spec_to_proto(spec).SerializeToString()
    return _SPEC % (text(spec.task_id), known(spec.agent), text(spec.description), text(spec.prompt))


def outcome_to_bytes(outcome: StepOutcome) -> bytes:
    """An encoded StepOutcome."""
    started_at, ended_at = outcome.started_at, outcome.ended_at
    if (
        started_at is None
        or ended_at is None
        or outcome.structured is not None
        or outcome.source_anchors
        or outcome.failure is not None
        or outcome.usage is not NO_USAGE
        or outcome.agent_session_id
        or outcome.unknown_fields
    ):
        return outcome_to_proto(outcome).SerializeToString()
    return _OUTCOME_TEXTS % (
        text(outcome.task_id),
        text(outcome.session_id),
        known(outcome.agent),
        text(outcome.output),
        known(outcome.node),
    ) + _OUTCOME_REST % (
        varint(outcome.success),
        varint(outcome.attempts),
        time_to_bytes(started_at),
        time_to_bytes(ended_at),
    )


def has_large_output(event: StepEvent) -> bool:
    """Whether it is an end with so large an output that it is to be copied as seldom as can be."""
    return isinstance(event, StepEnded) and len(event.outcome.output) > LINK_TEXT_BYTES


def event_to_bytes(event: StepEvent) -> bytes:
    """An encoded StepEvent."""
    if isinstance(event, StepEnded):
        if event.outcome.encoded_end:
            return event.outcome.encoded_end
        life, form = _ENDED % sized(outcome_to_bytes(event.outcome)), _ENDED_EVENT
    elif isinstance(event, StepStarted):
        life, form = _STARTED % (text(event.session_id), known(event.node)), _STARTED_EVENT
    else:
        return event_to_proto(event).SerializeToString()
    return form % (text(event.task_id), time_to_bytes(event.time), sized(life))


def update_to_bytes(execution_id: str, event: StepEvent) -> bytes:
    """An encoded ExecutionUpdate, which tells an event on a link."""
    return _UPDATE % (text(execution_id), sized(event_to_bytes(event)))


def relayed_event_from_proto(message: pb.StepEvent) -> StepEvent | None:
    """As `event_from_proto`, of an event that is to be passed on: an end can be so without being encoded again."""
    event = event_from_proto(message)
    if isinstance(event, StepEnded) and (event.task_id, event.time) == (event.outcome.task_id, event.outcome.ended_at):
        event.outcome.came_in(message.SerializeToString())
    return event
