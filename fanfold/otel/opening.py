"""Sets up what a service traces with, and takes it down."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import structlog

from fanfold.errors import FailedPrecondition, InvalidArgument
from fanfold.otel.settings import TraceSettings
from fanfold.tracing import NO_TRACER, Tracer

LAST_SPANS_SECONDS = 2.0
"""How long the end of a service waits for its last spans to be sent."""

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def open_tracer(settings: TraceSettings, *, service: str, instance: str, version: str) -> AsyncIterator[Tracer]:
    """What a service traces with while the block lasts; nothing is loaded if it is not to trace.

    Args:
        settings: the service's.
        service: what kind of service it is, as `coordinator`.
        instance: its own name.
        version: its release.

    Raises:
        FailedPrecondition: OpenTelemetry is not installed.
        InvalidArgument: a file of the settings cannot be used; its content is not told.
    """
    if not settings.endpoint:
        yield NO_TRACER
        return
    try:
        from fanfold.otel.export import new_provider  # noqa: PLC0415 - heavy, and may not be installed
        from fanfold.otel.tracer import OtelTracer  # noqa: PLC0415
    except ImportError as error:
        raise FailedPrecondition(f"traces need `pip install fanfold[otel]`: {error}", reason="NOT_INSTALLED") from None
    headers = {name: _value_of(name, file) for name, file in settings.header_files.items()}
    if settings.ca is not None and not settings.ca.is_file():
        raise InvalidArgument.of_field("traces.ca", f"{settings.ca} is no file")
    provider = new_provider(settings, headers, service=service, instance=instance, version=version)
    _log.info("tracing", endpoint=settings.endpoint, content=settings.content)
    try:
        yield OtelTracer(provider, tells_content=settings.content)
    finally:
        await _within(LAST_SPANS_SECONDS, provider.shutdown)


def _value_of(name: str, file: Path) -> str:
    try:
        value = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "must be UTF-8"
        raise InvalidArgument.of_field(f"traces.header_files.{name}", f"{file}: {why}") from None
    if not value or not value.isprintable():
        raise InvalidArgument.of_field(f"traces.header_files.{name}", f"{file} must have one line of text")
    return value


async def _within(seconds: float, work: Callable[[], None]) -> None:
    """Do what blocks in a thread, and leave it alone when it takes longer: it may be asking who does not answer."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        work()
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name="last spans", daemon=True).start()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await done.wait()
