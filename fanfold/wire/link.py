"""Executions on a link, their rejections and their adoption (`executor_node.proto`)."""

from __future__ import annotations

from dataclasses import replace

from fanfold.model.step import NO_USAGE
from fanfold.parts import LargeTexts, Texts
from fanfold.ports import ExecutionStart, Rejection, RejectionReason, RunAdopted
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.wire.parts import spec_with_texts
from fanfold.wire.step import spec_from_proto, spec_to_proto, usage_from_proto, usage_to_proto
from fanfold.wire.time import seconds_from_proto, set_duration
from fanfold.wire.trace import trace_from_proto, trace_into

_REASON_TO_PROTO = {reason: pb.RejectionReason.Value(f"REJECTION_REASON_{reason.name}") for reason in RejectionReason}
_REASON_FROM_PROTO = {number: reason for reason, number in _REASON_TO_PROTO.items()}


def start_into(start: ExecutionStart, message: pb.StartExecution, large: LargeTexts | None = None) -> None:
    """Write an execution's start into a message of a batch; its large texts go into `large` if that is given."""
    message.execution_id = start.execution_id
    message.run_id = start.run_id
    message.epoch = start.epoch
    message.progress = start.progress
    if start.trace is not None:
        trace_into(start.trace, message.trace)
    spec_to_proto(start.spec, message.step, large)


def start_from_proto(message: pb.StartExecution) -> ExecutionStart:
    """An execution's start. Raises InvalidArgument as `spec_from_proto` does."""
    return ExecutionStart(
        execution_id=message.execution_id,
        run_id=message.run_id,
        epoch=message.epoch,
        spec=spec_from_proto(message.step),
        progress=message.progress,
        trace=trace_from_proto(message.trace) if message.HasField("trace") else None,
    )


def with_texts(start: ExecutionStart, texts: Texts) -> ExecutionStart:
    """The start with texts that came apart from it. Raises InvalidArgument if the schema is no JSON."""
    return replace(start, spec=spec_with_texts(start.spec, texts))


def rejection_into(rejection: Rejection, message: pb.ExecutionRejected) -> None:
    """Write a rejection into a message of a batch."""
    message.reason = _REASON_TO_PROTO[rejection.reason]
    set_duration(message.retry_delay, rejection.retry_delay)
    if rejection.usage is not NO_USAGE:
        usage_to_proto(rejection.usage, message.usage)


def rejection_from_proto(message: pb.ExecutionRejected) -> Rejection:
    """A rejection; a newer node's reason is taken as FULL, which is tried again."""
    return Rejection(
        reason=_REASON_FROM_PROTO.get(message.reason, RejectionReason.FULL),
        retry_delay=seconds_from_proto(message.retry_delay),
        usage=usage_from_proto(message.usage) if message.HasField("usage") else NO_USAGE,
    )


def adopted_into(adopted: RunAdopted, message: pb.RunAdopted) -> None:
    """Write which executions were adopted into a message of a batch."""
    message.run_id = adopted.run_id
    message.epoch = adopted.epoch
    message.held_executions.extend(adopted.running)
    message.held_executions.extend(adopted.ended)
    message.ended_executions.extend(adopted.ended)
    message.stale = adopted.stale
    message.unbegun = adopted.unbegun


def adopted_from_proto(message: pb.RunAdopted) -> RunAdopted:
    """Which executions were adopted."""
    ended = frozenset(message.ended_executions)
    return RunAdopted(
        run_id=message.run_id,
        epoch=message.epoch,
        running=frozenset(message.held_executions) - ended,
        ended=ended,
        stale=message.stale,
        unbegun=message.unbegun,
    )
