"""Names, help texts and labels of the coordinator's own metrics."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.placement.nodes import Nodes
from fanfold.model.node import NodeState

NODES = "fanfold_nodes"
CONCURRENCY_HINT = "fanfold_concurrency_hint"
STEPS_IN_FLIGHT = "fanfold_steps_in_flight"


class NodeCollector(Collector):
    """Tells how the nodes fare at the moment of a scrape; costs nothing between scrapes."""

    def __init__(self, nodes: Nodes, registry: CollectorRegistry) -> None:
        self._nodes = nodes
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """The metrics as they are now."""
        views = self._nodes.views()
        states = GaugeMetricFamily(NODES, "Nodes that the coordinator knows, by state.", labels=["state"])
        for state in NodeState:
            states.add_metric([state.value], sum(view.state is state for view in views))
        yield states
        yield GaugeMetricFamily(CONCURRENCY_HINT, "Sum of the live nodes' hints.", value=self._nodes.hint())
        in_flight = sum(view.steps_in_flight for view in views)
        yield GaugeMetricFamily(STEPS_IN_FLIGHT, "Steps of this coordinator on nodes.", value=in_flight)
