"""How services log: JSON lines, or text for people, on stderr.

Lines written while a call is served name its `request_id` and `method`; what the domain binds with
`structlog.contextvars` (`run_id`, `step` and the like) is in them too. Payloads are never logged: values that could be
some are told by their size.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any, Literal

import structlog
from google.protobuf.message import Message
from structlog.types import EventDict, Processor, WrappedLogger

from fanfold.rpc.call import call_fields

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["json", "console"]

MAX_VALUE_CHARACTERS = 1024
_OURS = frozenset({"event", "exception", "stack"})


def configure_logs(
    *, level: LogLevel = "info", form: LogFormat = "json", fields: Mapping[str, str] | None = None
) -> None:
    """Set up all logging of this process, that of libraries included.

    Args:
        level: the least level that is written.
        form: "json" for machines, "console" for people.
        fields: what every line carries, as `{"service": "coordinator"}`.
    """
    common, rendering = _common(dict(fields or {})), _rendering(form)
    _configure_structlog(level, [*common, *rendering])
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *common],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def configure_logs_if_nobody_has() -> None:
    """Write warnings for people, in a program that has not set structlog up.

    Otherwise structlog would print everything, and local variables with each trace.
    """
    if not structlog.is_configured():
        _configure_structlog("warning", [*_common({}), *_rendering("console")])


def _configure_structlog(level: LogLevel, processors: list[Processor]) -> None:
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _common(always: Mapping[str, str]) -> list[Processor]:
    return [
        lambda _logger, _name, event: {**always, **call_fields(), **event},
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _without_payloads,
    ]


def _rendering(form: LogFormat) -> list[Processor]:
    # Traces without local variables, which may hold payloads and secrets.
    if form == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    return [
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
    ]


def _without_payloads(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    return {key: value if key in _OURS else _told(value) for key, value in event.items()}


def _told(value: Any) -> Any:
    match value:
        case str() if len(value) > MAX_VALUE_CHARACTERS:
            return f"<{len(value)} characters>"
        case bytes() | bytearray() | memoryview():
            return f"<{len(value)} bytes>"
        case Message():
            return f"<{value.DESCRIPTOR.full_name}, {value.ByteSize()} bytes>"
        case _:
            return value
