"""The fleet: nodes, their load, links, calls, processes and certificates."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from tools.dashboards.panels import BYTES, PER_SECOND, RATIO, SECONDS, Panels, dashboard, figure, graph, quantiles, rate

COORDINATOR = 'instance=~"$coordinator"'
NODE = 'instance=~"$node"'
ANY = 'instance=~"$coordinator|$node"'
OURS = "and on (job, instance) fanfold_build_info"
"""Keeps metrics that every program has to fanfold's own."""


def page() -> Dashboard:
    """Whether there is somewhere to run steps, and what is wrong with it if there is not."""
    return dashboard(
        "fleet",
        "Fleet",
        "Nodes and their load, links, calls, processes and certificates. Begin here: what fires, then what is red.",
        {"coordinator": "fanfold_coordinator_nodes", "node": "fanfold_node_max_concurrent_steps"},
        {
            "Now": _now(),
            "Capacity": _capacity(),
            "Placement and links": _links(),
            "Calls": _calls(),
            "Processes": _processes(),
        },
    )


def _now() -> Panels:
    return (
        figure(
            "Alerts",
            "Alerts of fanfold that fire. docs/operations.md says of each what it means and what to do.",
            'count(ALERTS{alertname=~"Fanfold.+", alertstate="firing"}) or vector(0)',
            alarm=1,
        ),
        figure(
            "Nodes ready",
            "Nodes that take steps, as the coordinator sees them that sees most.",
            f'max(fanfold_coordinator_nodes{{{COORDINATOR}, state="ready"}})',
        ),
        figure(
            "Nodes lost",
            "Nodes that are wanted and cannot be reached. `fanfold nodes` names them and says why.",
            f'max(fanfold_coordinator_nodes{{{COORDINATOR}, state="lost"}})',
            alarm=1,
        ),
        figure("Steps running", "Steps that have a place on a node.", f"sum(fanfold_node_running_steps{{{NODE}}})"),
        figure(
            "Load",
            "Steps on all nodes against those they would like to have. Above 100% they are asked for more.",
            f"sum(fanfold_node_running_steps{{{NODE}}}) / (sum(fanfold_node_concurrency_hint{{{NODE}}}) > 0)",
            unit=RATIO,
            warn=0.9,
            alarm=1.5,
        ),
        figure(
            "Steps waiting",
            "Steps that wait for a place on a node.",
            f"sum(fanfold_coordinator_steps_waiting{{{COORDINATOR}}})",
            warn=1,
        ),
    )


def _capacity() -> Panels:
    return (
        graph(
            "Nodes by state",
            "As the coordinator sees them that sees most. A deploy shows as draining, then connecting.",
            (f"max by (state) (fanfold_coordinator_nodes{{{COORDINATOR}}})", "{{state}}"),
        ),
        graph(
            "Steps against places",
            "Steps that run, steps that the nodes would like to have, and the most they take. Running at the hint with "
            "steps waiting means that more nodes would help.",
            (f"sum(fanfold_node_running_steps{{{NODE}}})", "running"),
            (f"sum(fanfold_node_concurrency_hint{{{NODE}}})", "hint"),
            (f"sum(fanfold_node_max_concurrent_steps{{{NODE}}})", "most"),
            (f"sum(fanfold_coordinator_steps_waiting{{{COORDINATOR}}})", "waiting"),
        ),
        graph(
            "Load of each node",
            "Everybody's steps on a node against those it would like to have. One node far above the others offers an "
            "agent or a label that they lack.",
            (f"max by (node) (fanfold_coordinator_node_load_ratio{{{COORDINATOR}}})", "{{node}}"),
            unit=RATIO,
        ),
        graph(
            "Wait for a place",
            "How long attempts waited until they were placed.",
            *quantiles("fanfold_coordinator_queue_wait_seconds", f'{COORDINATOR}, result="placed"'),
            unit=SECONDS,
        ),
    )


def _links() -> Panels:
    return (
        graph(
            "What came of placements",
            "`lost` counts steps that went with their node, `full` those that have to go elsewhere.",
            (rate("fanfold_coordinator_placements_total", "result", COORDINATOR), "{{result}}"),
            unit=PER_SECOND,
        ),
        graph(
            "Steps refused by nodes",
            "No step fails by it. `stale epoch` is a coordinator that went on after its run was taken over.",
            (rate("fanfold_node_steps_refused_total", "reason", NODE), "{{reason}}"),
            unit=PER_SECOND,
        ),
        graph(
            "Links and leases that broke",
            "Links to nodes that broke without a drain, and leases of coordinators that ran out on nodes, which then "
            "kill what they held.",
            (f"sum(increase(fanfold_coordinator_nodes_lost_total{{{COORDINATOR}}}[$__rate_interval]))", "links"),
            (f"sum(increase(fanfold_node_leases_expired_total{{{NODE}}}[$__rate_interval]))", "leases"),
            span=8,
        ),
        graph(
            "Elements in a message",
            "How much a link carries at once, on average. It grows with load; that is what makes steps cheap.",
            (
                f"{rate('fanfold_coordinator_link_batch_elements_sum', 'direction', COORDINATOR)} / "
                f"({rate('fanfold_coordinator_link_batch_elements_count', 'direction', COORDINATOR)} > 0)",
                "{{direction}}",
            ),
            span=8,
        ),
        graph(
            "Held on nodes",
            "Endings that no coordinator has acknowledged, and agents whose model provider wants them to wait.",
            (f"sum(fanfold_node_held_endings{{{NODE}}})", "endings"),
            (f"sum by (reason) (fanfold_node_held_back_agents{{{NODE}}})", "agents: {{reason}}"),
            span=8,
        ),
    )


def _calls() -> Panels:
    return (
        graph(
            "Calls by status",
            "Calls that ended. UNAVAILABLE comes with deploys; INTERNAL is a mistake of fanfold's.",
            (rate("fanfold_rpc_handled_total", "code", ANY), "{{code}}"),
            unit=PER_SECOND,
            span=8,
        ),
        graph(
            "Calls that run",
            "Streams of runs, links, announcements and watchers, by method.",
            (f"sum by (grpc_method) (fanfold_rpc_in_flight{{{ANY}}}) > 0", "{{grpc_method}}"),
            span=8,
        ),
        graph(
            "Callers turned away",
            "Calls whose caller is not known, or may not do this; and calls that ended as what they had shown expired.",
            (rate("fanfold_authentication_failures_total", "reason", ANY), "{{reason}}"),
            unit=PER_SECOND,
            span=8,
        ),
    )


def _processes() -> Panels:
    return (
        graph(
            "Memory",
            "Resident memory of each service, without its children.",
            (f"process_resident_memory_bytes{{{ANY}}} {OURS}", "{{instance}}"),
            unit=BYTES,
            span=8,
        ),
        graph(
            "Processor time",
            "A coordinator near 1 is at its limit: it has one loop. Start another one.",
            (f"rate(process_cpu_seconds_total{{{ANY}}}[$__rate_interval]) {OURS}", "{{instance}}"),
            span=8,
        ),
        graph(
            "Releases",
            "Services by fanfold's version. Two of them for long is a deploy that stopped halfway.",
            (f"count by (version) (fanfold_build_info{{{ANY}}})", "{{version}}"),
            span=8,
        ),
        graph(
            "File descriptors",
            "Those that are open, against those that may be.",
            (f"process_open_fds{{{ANY}}} / process_max_fds{{{ANY}}} {OURS}", "{{instance}}"),
            unit=RATIO,
        ),
        graph(
            "Certificates' time left",
            "Until the first of the certificates of a use expires. Services take renewed files by themselves.",
            (
                f"min by (use) (fanfold_certificate_expiry_timestamp_seconds{{{ANY}}}) - time()",
                "{{use}}",
            ),
            unit=SECONDS,
        ),
    )
