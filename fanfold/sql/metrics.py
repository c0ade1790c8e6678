"""What is measured of a database that a service writes to."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from fanfold.families import number, numbers, spread
from fanfold.measures import QUICK, SIZES, Spread, counter, gauge, histogram

TRANSACTION_SECONDS = histogram(
    "fanfold_database_transaction_duration_seconds",
    QUICK,
    "How long writing transactions took, from their beginning until they were durable.",
)
TRANSACTION_OPERATIONS = histogram(
    "fanfold_database_transaction_operations", SIZES, "Operations that shared a transaction (group commit)."
)
ERRORS = counter(
    "fanfold_database_errors_total",
    "Transactions that failed, those that write with all of their operations.",
    kind=("write", "read"),
)
WAITING = gauge("fanfold_database_waiting_operations", "Operations that wait to be written.")


class DatabaseCounts:
    """What is counted of a database, for the most part by the one thread that writes to it."""

    def __init__(self) -> None:
        self.seconds = Spread(QUICK)
        self.operations = Spread(SIZES)
        self.errors = 0
        """Transactions that were to write."""
        # The event loop counts the others:
        self.read_errors = 0
        self.waiting = 0


class DatabaseCollector(Collector):
    """Tells Prometheus what was counted."""

    def __init__(self, counts: DatabaseCounts, registry: CollectorRegistry) -> None:
        self._counts = counts
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """The metrics as they are now."""
        counts = self._counts
        yield spread(TRANSACTION_SECONDS, counts.seconds)
        yield spread(TRANSACTION_OPERATIONS, counts.operations)
        yield numbers(ERRORS, {("write",): counts.errors, ("read",): counts.read_errors})
        yield number(WAITING, counts.waiting)
