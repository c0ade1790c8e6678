"""A logger for what callers' programs load as well.

They seldom have anything to log, and structlog is a sixth of what they load.
"""

from __future__ import annotations

from typing import Any


class LateLogger:
    """The logger of a module, as `structlog.get_logger` gives it, once something is logged."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, level: str) -> Any:
        import structlog  # noqa: PLC0415 - see above

        return getattr(structlog.get_logger(self._name), level)
