"""What can be said against a registry's settings without starting it: `fanfold serve job-registry --check-config`."""

from __future__ import annotations

from collections.abc import Iterator

from fanfold.errors import FieldViolation
from fanfold.rpc.preflight import troubles_of_serving, unreadable
from fanfold.sql.preflight import troubles_of_database
from job_registry.config import JobRegistryConfig


def contradictions(config: JobRegistryConfig) -> Iterator[FieldViolation]:
    """Settings that are right each, and wrong together."""
    if config.output.settled_bytes > config.output.live_bytes:
        yield FieldViolation("output.settled_bytes", "must not be more than output.live_bytes")


def troubles(config: JobRegistryConfig) -> Iterator[FieldViolation]:
    """What this machine lacks of what the settings name, and addresses that are none."""
    yield from troubles_of_serving(config)
    yield from unreadable(config.traces, "traces")
    yield from troubles_of_database(config.store, "store")
