"""A tracer whose spans stay in this process."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased

from fanfold.model.trace import TraceContext
from fanfold.otel.tracer import OtelTracer

CALLER = TraceContext("00-" + "a" * 32 + "-" + "b" * 16 + "-01", "vendor=1")
"""What a caller has its call be part of, and records."""


class Recorded:
    """The tracer, and the spans that have ended."""

    def __init__(self, *, content: bool = False) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=ParentBased(ALWAYS_ON), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = OtelTracer(provider, tells_content=content)

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans that have ended, in that order."""
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        """Those of this name."""
        return [span for span in self.spans if span.name == name]

    def only(self, name: str) -> ReadableSpan:
        """The only one of this name."""
        (span,) = self.named(name)
        return span


def attribute(span: ReadableSpan, name: str) -> Any:
    """An attribute; None if the span does not have it."""
    return (span.attributes or {}).get(name)


def error_of(span: ReadableSpan) -> str | None:
    """The kind of error that a span ended with; None if it has no error. Fails unless its status says the same."""
    error = attribute(span, "error.type")
    assert span.status.status_code.name == ("UNSET" if error is None else "ERROR")
    return None if error is None else str(error)


def trace_id_of(span: ReadableSpan) -> str:
    """The id of the span's trace."""
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


def span_id_of(span: ReadableSpan) -> str:
    """The span's own id."""
    assert span.context is not None
    return f"{span.context.span_id:016x}"


def parent_of(span: ReadableSpan) -> str | None:
    """The id of the span that it is a child of; None if it begins a trace."""
    return None if span.parent is None else f"{span.parent.span_id:016x}"


def links_of(span: ReadableSpan) -> list[tuple[str, str]]:
    """Trace and span of what it is linked to."""
    return [(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") for link in span.links]
