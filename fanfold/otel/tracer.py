"""Implements `fanfold.tracing` with OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from fanfold.model.trace import TraceContext
from fanfold.tracing import NO_ATTRIBUTES, Attributes, Span, SpanKind

_KINDS = {kind: trace.SpanKind[kind.name] for kind in SpanKind}
_NOTHING = Context()
_W3C = TraceContextTextMapPropagator()


class OtelTracer:
    """Implements `Tracer`. With `tells_content` spans have what callers, agents and models have written."""

    is_on = True

    def __init__(self, provider: TracerProvider, *, tells_content: bool = False) -> None:
        self._tracer = provider.get_tracer("fanfold")
        self._tells_content = tells_content

    def start(
        self,
        name: str,
        parent: Span | TraceContext | None,
        attributes: Attributes = NO_ATTRIBUTES,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        link: TraceContext | None = None,
        at: datetime | None = None,
    ) -> OtelSpan:
        """Begin a span."""
        linked = None if link is None else trace.get_current_span(_context_of(link)).get_span_context()
        span = self._tracer.start_span(
            name,
            context=_context_of(parent),
            kind=_KINDS[kind],
            attributes=dict(attributes),
            links=None if linked is None else [trace.Link(linked)],
            start_time=_nanoseconds(at),
        )
        return OtelSpan(span, tells_content=self._tells_content)


class OtelSpan:
    """Implements `Span`."""

    __slots__ = ("_tells_content", "span")

    def __init__(self, span: trace.Span, *, tells_content: bool) -> None:
        self.span = span
        self._tells_content = tells_content and span.is_recording()

    @property
    def context(self) -> TraceContext | None:
        """What spans in other processes are to be children of."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, trace.set_span_in_context(self.span, _NOTHING))
        return TraceContext(carrier["traceparent"], carrier.get("tracestate", ""))

    @property
    def is_recorded(self) -> bool:
        """Whether it is sampled."""
        return self.span.is_recording()

    def set(self, attributes: Attributes) -> None:
        """Say more of it."""
        self.span.set_attributes(dict[str, AttributeValue](attributes))

    def set_content(self, name: str, text: Callable[[], str]) -> None:
        """Say what somebody has written, if that is wanted."""
        if self._tells_content:
            self.span.set_attribute(name, text())

    def note(self, what: str, attributes: Attributes = NO_ATTRIBUTES) -> None:
        """Say that something happened."""
        self.span.add_event(what, dict[str, AttributeValue](attributes))

    def end(self, error: str = "", message: str = "", *, at: datetime | None = None) -> None:
        """It is over. What went well has no status, as OpenTelemetry has it for libraries."""
        if error:
            told = message if self._tells_content else None
            self.span.set_attribute("error.type", error)
            self.span.set_status(trace.StatusCode.ERROR, told)
        self.span.end(_nanoseconds(at))


def _context_of(parent: Span | TraceContext | None) -> Context:
    """The context whose child a span is; never one of the task that happens to run."""
    if isinstance(parent, OtelSpan):
        return trace.set_span_in_context(parent.span, _NOTHING)
    told = parent if parent is None or isinstance(parent, TraceContext) else parent.context
    if told is None:
        return _NOTHING
    return _W3C.extract({"traceparent": told.traceparent, "tracestate": told.tracestate}, _NOTHING)


def _nanoseconds(at: datetime | None) -> int | None:
    return None if at is None else round(at.timestamp() * 1_000_000) * 1_000
