"""Sends spans by OTLP, from a thread and a bounded queue, so that whoever takes them cannot hold anybody up."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from fanfold.otel.settings import TraceSettings

_SEND_EVERY_MS = 1_000
_MOST_AT_ONCE = 512


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
    provider.add_span_processor(
        BatchSpanProcessor(
            exporter,
            max_queue_size=settings.queue,
            schedule_delay_millis=_SEND_EVERY_MS,
            max_export_batch_size=min(_MOST_AT_ONCE, settings.queue),
        )
    )
    return provider
