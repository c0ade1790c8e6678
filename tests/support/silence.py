"""Proof that nothing went wrong in silence: what a block logs as an error, by structlog or by logging."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from structlog.testing import capture_logs


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(f"{record.name}: {record.getMessage()}")


@contextmanager
def nothing_logged_as_error() -> Iterator[None]:
    """Fail if the block logs an error, or a task's error is found that nobody asked for."""
    records = _Records()
    logging.getLogger().addHandler(records)
    try:
        with capture_logs() as lines:
            yield
            gc.collect()  # asyncio logs a task's error that nobody asked for when the task is collected
    finally:
        logging.getLogger().removeHandler(records)
    errors = [line for line in lines if line["log_level"] in {"error", "critical"}]
    assert not errors
    assert not records.told
