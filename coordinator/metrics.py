"""The coordinator's metrics: what they are called, what they say, and how their labels are bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from coordinator.placement.nodes import Nodes
from fanfold.families import numbers
from fanfold.measures import LASTING, LONG, QUICK, SIZES, counter, gauge, histogram
from fanfold.model.node import NodeState
from fanfold.model.run import RunKind
from fanfold.model.step import FailureCode
from fanfold.ports import RejectionReason

_KIND = {"kind": tuple(RunKind)}
_WAITS_ON = {"on": ("place", "node", "quota", "tokens", "retry", "caller", "journal", "registry")}
_AGENT = {"agent": "agents that nodes have offered, at most 100 of them; `other`"}
_NODE = {"node": "the nodes that are known now"}

# Runs.

RUNS = gauge(
    "fanfold_coordinator_runs", "Runs that this coordinator carries out now.", **_KIND, state=("pending", "running")
)
RUNS_ENDED = counter(
    "fanfold_coordinator_runs_ended_total",
    "Runs that ended here; those that moved to another coordinator are not among them.",
    **_KIND,
    state=("completed", "cancelled", "failed"),
)
RUN_SECONDS = histogram(
    "fanfold_coordinator_run_duration_seconds",
    LONG,
    "How long runs lasted that ended here, from their acceptance.",
    **_KIND,
)
RUNS_WAITING = gauge(
    "fanfold_coordinator_runs_waiting",
    "Runs of which nothing moves, by what most of their steps wait on.",
    **_WAITS_ON,
)
LONGEST_WAIT = gauge(
    "fanfold_coordinator_longest_wait_seconds",
    "How long the run has waited of which nothing has moved for longest; 0 if none waits.",
    **_WAITS_ON,
)
SCRIPTS = gauge("fanfold_coordinator_script_processes", "Processes of the script engine.", state=("running", "spare"))

# Steps.

STEPS = counter(
    "fanfold_coordinator_steps_ended_total",
    "Steps that ended, after all their attempts; `OK`, or why they failed. Recalled ones are not among them.",
    **_AGENT,
    code="`OK` and the failure codes (C3)",
)
STEP_SECONDS = histogram(
    "fanfold_coordinator_step_duration_seconds",
    LONG,
    "How long steps lasted, from the start of their first attempt on a node.",
    **_AGENT,
)
RETRIES = counter(
    "fanfold_coordinator_step_retries_total",
    "Further attempts of steps, by what the attempt before ended with.",
    code=tuple(FailureCode),
)
TOKENS = counter(
    "fanfold_coordinator_tokens_total", "Tokens that steps have spent.", **_AGENT, direction="`input` or `output`"
)
MODEL_CALLS = counter("fanfold_coordinator_model_requests_total", "Calls of models that steps have made.", **_AGENT)
BUDGETS = gauge(
    "fanfold_coordinator_budget_tokens",
    "Budgets of the runs that are carried out now, added up; reserved is what is set aside for attempts that run.",
    state=("limit", "spent", "reserved"),
)
BUDGETS_EXHAUSTED = counter("fanfold_coordinator_budgets_exhausted_total", "Runs whose budget had no room for a step.")
BUDGET_REFUSALS = counter(
    "fanfold_coordinator_budget_refused_steps_total", "Steps that did not fit into the budget of their run.", **_AGENT
)

# Placement.

NODES = gauge("fanfold_coordinator_nodes", "Nodes that are known.", state=tuple(NodeState))
NODES_LOST = counter("fanfold_coordinator_nodes_lost_total", "Links to nodes that broke while the node did not drain.")
NODE_STEPS = gauge("fanfold_coordinator_node_steps_in_flight", "Steps of this coordinator on a node.", **_NODE)
NODE_HINT = gauge(
    "fanfold_coordinator_node_concurrency_hint", "Steps that this coordinator would like to have on a node.", **_NODE
)
NODE_LOAD = gauge(
    "fanfold_coordinator_node_load_ratio",
    "Everybody's steps on a node against those it would like to have; above 1 it is asked for more than that.",
    **_NODE,
)
STEPS_WAITING = gauge("fanfold_coordinator_steps_waiting", "Steps that wait for a place on a node.")
QUEUE_WAIT = histogram(
    "fanfold_coordinator_queue_wait_seconds",
    LASTING,
    "How long attempts waited for a place; they are refused one when no node could take them within the bound.",
    result=("placed", "refused"),
)
PLACEMENTS = counter(
    "fanfold_coordinator_placements_total",
    "What came of steps that were sent to nodes: they ended, were lost with their node, or were not taken, or handed"
    " back, for another reason.",
    result=("ended", "lost", *(reason.name.lower() for reason in RejectionReason)),
)
LINK_BATCH = histogram(
    "fanfold_coordinator_link_batch_elements",
    SIZES,
    "Starts, cancels and acknowledgements in a message to a node, or events in one from a node.",
    direction=("sent", "received"),
)

# Journal.

JOURNAL_SECONDS = histogram(
    "fanfold_coordinator_journal_append_duration_seconds",
    QUICK,
    "How long it took until a run's events were durable, for each append.",
)
JOURNAL_EVENTS = histogram("fanfold_coordinator_journal_append_events", SIZES, "Events in an append.")
JOURNAL_FAILURES = counter(
    "fanfold_coordinator_journal_failures_total",
    "Appends and renewals of leases that the journal did not take; they are tried again.",
)
LEASES = gauge("fanfold_coordinator_leases", "Runs of the journal that are held here.")
RENEWAL_SECONDS = histogram(
    "fanfold_coordinator_lease_renewal_duration_seconds", QUICK, "How long it took to renew the leases of all runs."
)
LEASE_CHANGES = counter(
    "fanfold_coordinator_lease_changes_total",
    "Runs that came to be held here, new ones (accepted) and others that nobody held any more (taken_over); and runs"
    " that are held here no longer though they have not ended: as this coordinator stops (handed_over), as their lease"
    " was over or could not be renewed (lost), as it cannot go on with them (left).",
    change=("accepted", "taken_over", "handed_over", "lost", "left"),
)


class NodeCollector(Collector):
    """Tells how the nodes fare at the moment of a scrape; costs nothing between scrapes."""

    def __init__(self, nodes: Nodes, registry: CollectorRegistry) -> None:
        self._nodes = nodes
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """The metrics as they are now."""
        views = self._nodes.views()
        yield numbers(NODES, Counter((view.state.value,) for view in views))
