"""Places in distributed traces (`trace.proto`)."""

from __future__ import annotations

from fanfold.model.trace import TraceContext, parse_trace_context
from fanfold.v1 import trace_pb2 as pb


def trace_into(context: TraceContext, message: pb.TraceContext) -> None:
    """Write a context into a message."""
    message.traceparent = context.traceparent
    if context.tracestate:
        message.tracestate = context.tracestate


def trace_from_proto(message: pb.TraceContext) -> TraceContext | None:
    """The context that was sent; None for what is none."""
    return parse_trace_context(message.traceparent, message.tracestate)
