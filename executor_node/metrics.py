"""An executor node's metrics: what they are called, what they say, and how their labels are bounded."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from executor_node.executions import Executions
from executor_node.links import Links
from fanfold.families import number, numbers, spreads
from fanfold.measures import FRAMES, LONG, MAX_AGENTS, OK, OTHER, Tally, counter, gauge, histogram
from fanfold.ports import RejectionReason

_AGENT = {"agent": f"the first {MAX_AGENTS} of the node's agents that are asked for, `{OTHER}`"}

RUNNING_STEPS = gauge("fanfold_node_running_steps", "Steps that have a place on the node.")
MAX_CONCURRENT_STEPS = gauge("fanfold_node_max_concurrent_steps", "Steps that the node takes at most.")
CONCURRENCY_HINT = gauge("fanfold_node_concurrency_hint", "Steps that the node would like to have.")
DRAINING = gauge("fanfold_node_draining", "1 while the node takes no further steps.")
STEPS = counter(
    "fanfold_node_steps_ended_total",
    "Attempts of steps that ended here; `OK`, or why they failed.",
    **_AGENT,
    code=f"`{OK}` and the failure codes (C3)",
)
STEP_SECONDS = histogram(
    "fanfold_node_step_duration_seconds",
    LONG,
    "How long attempts lasted, until no process of theirs remained.",
    **_AGENT,
)
REFUSALS = counter(
    "fanfold_node_steps_refused_total",
    "Steps of coordinators that were not taken, or handed back; that is never the step's failure.",
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
    FRAMES,
    "Starts, cancels and acknowledgements in a message from a coordinator, events and rejections in one to it. Those"
    " that have none are not counted.",
    direction=("sent", "received"),
)


class NodeCollector(Collector):
    """Tells how the node fares at the moment of a scrape."""

    def __init__(self, executions: Executions, links: Links, registry: CollectorRegistry) -> None:
        self._executions = executions
        self._links = links
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """The metrics as they are now."""
        status, counts = self._executions.status(), self._executions.counts
        yield number(RUNNING_STEPS, status.running_steps)
        yield number(MAX_CONCURRENT_STEPS, status.max_concurrent_steps)
        yield number(CONCURRENCY_HINT, status.concurrency_hint)
        yield number(DRAINING, int(status.draining))
        yield numbers(STEPS, counts.ended)
        yield spreads(STEP_SECONDS, counts.seconds)
        yield numbers(REFUSALS, counts.refused)
        yield numbers(TOKENS, counts.tokens)
        yield numbers(HELD_BACK, Tally(("quota" if each.quota else "rate",) for each in status.held_back))
        yield number(COORDINATORS, len(self._links))
        yield number(HELD_ENDINGS, self._links.unacknowledged)
        yield number(LEASES_EXPIRED, counts.leases_expired)
        yield spreads(LINK_BATCH, counts.batches)
