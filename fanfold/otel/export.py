"""Sends spans by OTLP, from a thread and a bounded queue, so that whoever takes them cannot hold anybody up."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from fanfold.otel.settings import TraceSettings

_SEND_EVERY_MS = 1_000
_MOST_AT_ONCE = 512
_MOST_WITH_CONTENT = 32
"""Spans with content, of which each may have tens of kilobytes, and receivers take messages of some megabytes."""

_log = structlog.get_logger(__name__)


def new_provider(
    settings: TraceSettings, headers: Mapping[str, str], *, service: str, instance: str, version: str
) -> TracerProvider:
    """What makes the spans of a service and sends them. `headers` are shown to whoever takes them."""
    exporter = OTLPSpanExporter(
        endpoint=f"{settings.endpoint.rstrip('/')}/v1/traces",
        headers=headers,
        certificate_file=None if settings.ca is None else str(settings.ca),
        timeout=settings.timeout,
    )
    resource = Resource.create(
        {
            "service.namespace": "fanfold",
            "service.name": f"fanfold-{service}",
            "service.instance.id": instance,
            "service.version": version,
        }
    )
    sampler = ParentBased(TraceIdRatioBased(settings.sample_ratio))
    provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
    # They say that a receiver is away once a second, and of each span that it is dropped.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    logging.getLogger("opentelemetry.sdk._shared_internal").setLevel(logging.ERROR)
    most = _MOST_WITH_CONTENT if settings.content else _MOST_AT_ONCE
    provider.add_span_processor(
        BatchSpanProcessor(
            Telling(exporter, settings.endpoint),
            max_queue_size=settings.queue,
            schedule_delay_millis=_SEND_EVERY_MS,
            max_export_batch_size=min(most, settings.queue),
        )
    )
    return provider


class Telling(SpanExporter):
    """Sends spans by another exporter, and tells once when that begins to fail and once when it succeeds again."""

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self._exporter = exporter
        self._endpoint = endpoint
        self._lost = 0
        self._complaints = _Complaints()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send them."""
        self._complaints.clear()
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            if not self._lost:
                why = str(self._complaints)
                _log.warning("traces cannot be sent, and are lost meanwhile", endpoint=self._endpoint, why=why)
            self._lost += len(spans)
        elif self._lost:
            _log.info("traces are sent again", endpoint=self._endpoint, lost_at_least=self._lost)
            self._lost = 0
        return result

    def shutdown(self) -> None:
        """Send no more."""
        self._exporter.shutdown()


class _Complaints(logging.Filter):
    """The last things that the exporter was about to log, in place of its log: nothing else of it says why it fails."""

    def __init__(self) -> None:
        super().__init__()
        self._words: deque[str] = deque(maxlen=2)  # the last may only say that it has been tried often enough
        exporter = logging.getLogger(OTLPSpanExporter.__module__)
        exporter.setLevel(logging.WARNING)
        exporter.filters = [self]

    def __str__(self) -> str:
        return "; ".join(self._words)

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep it, and have it told nowhere."""
        self._words.append(record.getMessage())
        return False

    def clear(self) -> None:
        """What comes is of another attempt."""
        self._words.clear()
