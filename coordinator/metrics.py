"""The coordinator's metrics: what they are called, what they say, and how their labels are bounded."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from coordinator.budget import TokenBudget
from coordinator.counts import Counts
from coordinator.placement.node import KnownNode
from coordinator.placement.nodes import Nodes
from coordinator.placement.queue import PlacementQueue
from coordinator.runs.attached import AttachedRun
from coordinator.runs.holding import Holding
from coordinator.runs.journaled import JournaledRun
from coordinator.runs.runs import Runs
from coordinator.runs.scripts import ScriptRuns
from coordinator.scripts.engine.quickjs import QuickJsEngine
from coordinator.waiting import WaitsOn
from fanfold.clients.node_link import GrpcNodeDialer
from fanfold.families import number, numbers, spread, spreads
from fanfold.measures import (
    FRAMES,
    LASTING,
    LONG,
    MAX_AGENTS,
    OK,
    OTHER,
    QUICK,
    SIZES,
    Tally,
    counter,
    gauge,
    histogram,
)
from fanfold.model.node import NodeState
from fanfold.model.run import RunKind
from fanfold.model.step import FailureCode
from fanfold.ports import RejectionReason

_KIND = {"kind": tuple(RunKind)}
_WAITS_ON = {"on": tuple(WaitsOn)}
_AGENT = {"agent": f"the first {MAX_AGENTS} of which a step was begun, `{OTHER}`"}
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
    code=f"`{OK}` and the failure codes (C3)",
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
BUDGETS_EXHAUSTED = counter(
    "fanfold_coordinator_budgets_exhausted_total", "Runs whose budget had no room for a step, when that was first so."
)
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
    FRAMES,
    "Starts, cancels and acknowledgements in a message to a node, events and rejections in one from a node. Those that"
    " have none are not counted.",
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
    "Appends, and renewals and claims of leases, that the journal did not take; they are tried again.",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The parts of a coordinator that are looked at. `holding` is None without a journal."""

    counts: Counts
    dialer: GrpcNodeDialer
    nodes: Nodes
    queue: PlacementQueue
    runs: Runs
    holding: Holding | None
    scripts: ScriptRuns
    engine: QuickJsEngine


class CoordinatorCollector(Collector):
    """Tells how the coordinator fares at the moment of a scrape."""

    def __init__(self, measured: Measured, registry: CollectorRegistry) -> None:
        self._measured = measured
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """The metrics as they are now."""
        yield from self._collect_runs()
        yield from self._collect_steps()
        yield from self._collect_placement()
        if self._measured.holding is not None:
            yield from self._collect_journal(self._measured.holding)

    def _collect_runs(self) -> Iterable[Metric]:
        measured, counts = self._measured, self._measured.counts.runs
        live: list[AttachedRun | JournaledRun] = [*measured.runs.attached.values(), *(measured.holding or ())]
        views = [run.view() for run in live]
        yield numbers(RUNS, Tally((view.kind.value, view.state.value) for view in views))
        yield numbers(RUNS_ENDED, counts.ended)
        yield spreads(RUN_SECONDS, counts.seconds)
        standing = [run.standstill for run in live if run.standstill is not None]
        yield numbers(RUNS_WAITING, Tally((each.on.value,) for each in standing))
        now = time.monotonic()
        longest: dict[tuple[str, ...], float] = {}
        for each in standing:
            longest[each.on.value,] = max(now - each.since, longest.get((each.on.value,), 0.0))
        yield numbers(LONGEST_WAIT, longest)
        yield numbers(SCRIPTS, {("running",): measured.scripts.running, ("spare",): measured.engine.ready})
        budgets = [run.scope.budget for run in live if run.scope.budget is not None]
        yield numbers(BUDGETS, _added_up(budgets))
        yield number(BUDGETS_EXHAUSTED, counts.budgets_exhausted)

    def _collect_steps(self) -> Iterable[Metric]:
        counts = self._measured.counts.steps
        yield numbers(STEPS, counts.ended)
        yield spreads(STEP_SECONDS, counts.seconds)
        yield numbers(RETRIES, counts.retries)
        yield numbers(TOKENS, counts.tokens)
        yield numbers(MODEL_CALLS, counts.model_requests)
        yield numbers(BUDGET_REFUSALS, counts.refused_by_budget)

    def _collect_placement(self) -> Iterable[Metric]:
        measured = self._measured
        yield numbers(NODES, Tally((node.standing.state.value,) for node in measured.nodes))
        yield number(NODES_LOST, measured.nodes.lost)
        named = sorted((node for node in measured.nodes if node.name), key=KnownNode.is_linked)
        yield numbers(NODE_STEPS, {(node.name,): node.standing.in_flight for node in named})
        yield numbers(NODE_HINT, {(node.name,): node.standing.hint() for node in named})
        yield numbers(NODE_LOAD, {(node.name,): node.standing.load() for node in named})
        yield number(STEPS_WAITING, measured.queue.waiting)
        yield spreads(QUEUE_WAIT, measured.queue.waits)
        yield numbers(PLACEMENTS, measured.counts.steps.placements)
        yield spreads(LINK_BATCH, measured.dialer.batches)

    def _collect_journal(self, holding: Holding) -> Iterable[Metric]:
        counts = self._measured.counts.journal
        yield spread(JOURNAL_SECONDS, counts.append_seconds)
        yield spread(JOURNAL_EVENTS, counts.append_events)
        yield number(JOURNAL_FAILURES, counts.failures)
        yield number(LEASES, len(holding))
        yield spread(RENEWAL_SECONDS, counts.renewal_seconds)
        yield numbers(LEASE_CHANGES, counts.changes)


def _added_up(budgets: Sequence[TokenBudget]) -> Mapping[tuple[str, ...], int]:
    return {
        ("limit",): sum(budget.limit for budget in budgets),
        ("spent",): sum(budget.spent for budget in budgets),
        ("reserved",): sum(budget.reserved for budget in budgets),
    }
