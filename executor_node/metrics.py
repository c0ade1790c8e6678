"""Names, help texts and labels of a node's own metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fanfold.model.node import NodeStatus

RUNNING_STEPS = "fanfold_node_running_steps"
MAX_CONCURRENT_STEPS = "fanfold_node_max_concurrent_steps"
DRAINING = "fanfold_node_draining"


class StatusCollector(Collector):
    """Tells how the node fares at the moment of a scrape."""

    def __init__(self, status: Callable[[], NodeStatus], registry: CollectorRegistry) -> None:
        self._status = status
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """The metrics as they are now."""
        status = self._status()
        yield GaugeMetricFamily(RUNNING_STEPS, "Steps that run on the node.", value=status.running_steps)
        yield GaugeMetricFamily(
            MAX_CONCURRENT_STEPS, "Steps that the node takes at most.", value=status.max_concurrent_steps
        )
        yield GaugeMetricFamily(DRAINING, "1 while the node takes no further steps.", value=int(status.draining))
