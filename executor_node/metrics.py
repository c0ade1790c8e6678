"""An executor node's metrics: what they are called, what they say, and how their labels are bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from fanfold.families import number
from fanfold.measures import LONG, SIZES, counter, gauge, histogram
from fanfold.model.node import NodeStatus
from fanfold.ports import RejectionReason

_AGENT = {"agent": "the agents that the node offers or has offered, at most 100 of them; `other`"}

RUNNING_STEPS = gauge("fanfold_node_running_steps", "Steps that have a place on the node.")
MAX_CONCURRENT_STEPS = gauge("fanfold_node_max_concurrent_steps", "Steps that the node takes at most.")
CONCURRENCY_HINT = gauge("fanfold_node_concurrency_hint", "Steps that the node would like to have.")
DRAINING = gauge("fanfold_node_draining", "1 while the node takes no further steps.")
STEPS = counter(
    "fanfold_node_steps_ended_total",
    "Attempts of steps that ended here; `OK`, or why they failed.",
    **_AGENT,
    code="`OK` and the failure codes (C3)",
)
STEP_SECONDS = histogram(
    "fanfold_node_step_duration_seconds",
    LONG,
    "How long attempts lasted, until no process of theirs remained.",
    **_AGENT,
)
REFUSALS = counter(
    "fanfold_node_steps_refused_total",
    "Steps that were asked for and not taken; that is never the step's failure.",
    reason=tuple(reason.name.lower() for reason in RejectionReason),
)
TOKENS = counter(
    "fanfold_node_tokens_total", "Tokens that attempts have spent.", **_AGENT, direction="`input` or `output`"
)
HELD_BACK = gauge(
    "fanfold_node_held_back_agents",
    "Agents whose steps do not get on because of their model's provider: its quota is gone, or it wants fewer calls.",
    reason=("quota", "rate"),
)
COORDINATORS = gauge("fanfold_node_coordinators", "Coordinators that have a link or hold something here.")
HELD_ENDINGS = gauge("fanfold_node_held_endings", "Endings of steps that no coordinator has acknowledged yet.")
LEASES_EXPIRED = counter(
    "fanfold_node_leases_expired_total", "Leases of coordinators that were over before another word of theirs."
)
LINK_BATCH = histogram(
    "fanfold_node_link_batch_elements",
    SIZES,
    "Starts, cancels and acknowledgements in a message from a coordinator, or events in one to it.",
    direction=("sent", "received"),
)


class StatusCollector(Collector):
    """Tells how the node fares at the moment of a scrape."""

    def __init__(self, status: Callable[[], NodeStatus], registry: CollectorRegistry) -> None:
        self._status = status
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """The metrics as they are now."""
        status = self._status()
        yield number(RUNNING_STEPS, status.running_steps)
        yield number(MAX_CONCURRENT_STEPS, status.max_concurrent_steps)
        yield number(CONCURRENCY_HINT, status.concurrency_hint)
        yield number(DRAINING, int(status.draining))
