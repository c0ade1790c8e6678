"""The metadata of calls that say what they are part of in a distributed trace, as W3C Trace Context has it."""

from __future__ import annotations

import sys

from fanfold.model.trace import TraceContext, parse_trace_context
from fanfold.rpc.auth.acting import Metadata
from fanfold.rpc.call import current_call

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"


def current_trace() -> TraceContext | None:
    """What the caller has the call that the running task serves be part of; None outside of calls."""
    try:
        metadata = current_call().metadata
    except LookupError:
        return None
    return parse_trace_context(metadata.get(TRACEPARENT), metadata.get(TRACESTATE, ""))


def trace_metadata(context: TraceContext | None) -> Metadata:
    """The metadata that say so."""
    if context is None:
        return ()
    told = ((TRACEPARENT, context.traceparent),)
    return (*told, (TRACESTATE, context.tracestate)) if context.tracestate else told


def own_trace_metadata() -> Metadata:
    """The metadata of a call that a program makes within a span of its own; none unless it has loaded OpenTelemetry."""
    if "opentelemetry.trace" not in sys.modules:
        return ()
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return trace_metadata(parse_trace_context(carrier.get(TRACEPARENT), carrier.get(TRACESTATE, "")))
