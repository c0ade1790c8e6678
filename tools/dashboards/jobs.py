"""Jobs: how many there are and what becomes of them, their producers, their output, and the registry itself."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from tools.dashboards.panels import (
    BYTES,
    BYTES_PER_SECOND,
    PER_SECOND,
    RATIO,
    SECONDS,
    Panels,
    dashboard,
    figure,
    graph,
    quantiles,
    rate,
)

REGISTRY = 'instance=~"$registry"'
LIVE = f"sum by (instance) (fanfold_registry_jobs{{{REGISTRY}}})"
"""Jobs as each registry tells them; those on one store tell the same ones."""


def page() -> Dashboard:
    """Whether detached work is found, stopped and settled as it should be."""
    return dashboard(
        "jobs",
        "Jobs",
        "Jobs and what becomes of them, their producers, their output, and the job registry itself.",
        {"registry": "fanfold_registry_jobs_limit"},
        {"Now": _now(), "Jobs": _jobs(), "Producers and output": _producers(), "Registry": _registry()},
    )


def _now() -> Panels:
    return (
        figure("Jobs", "Jobs that are not settled.", f"max({LIVE}) or vector(0)"),
        figure(
            "Room taken",
            "Jobs against the most that may be there (`limits.live_jobs`). At 100% further ones are refused.",
            f"max({LIVE} / on (instance) fanfold_registry_jobs_limit{{{REGISTRY}}}) or vector(0)",
            unit=RATIO,
            warn=0.8,
            alarm=0.95,
        ),
        figure(
            "Producers away",
            "Jobs whose producer has not come back yet. After the grace they fail, as producer lost.",
            f'max(fanfold_registry_producers{{{REGISTRY}, state="away"}})',
            warn=1,
        ),
        figure(
            "Longest wait",
            "Of a job whose producer is away, or does not stop.",
            f"max(fanfold_registry_longest_wait_seconds{{{REGISTRY}}})",
            unit=SECONDS,
            warn=30,
            alarm=60,
        ),
        figure(
            "Given up",
            "Jobs that the registry settled because their producers did not, in the time shown.",
            f"sum(increase(fanfold_registry_jobs_given_up_total{{{REGISTRY}}}[$__range]))",
            warn=1,
        ),
        figure(
            "Output held",
            "Bytes of output of live jobs in memory (`output.total_bytes`).",
            f"sum(fanfold_registry_output_held_bytes{{{REGISTRY}}})",
            unit=BYTES,
        ),
    )


def _jobs() -> Panels:
    return (
        graph(
            "Jobs by kind",
            "Jobs that are not settled.",
            (f"max by (kind) (sum by (instance, kind) (fanfold_registry_jobs{{{REGISTRY}}}))", "{{kind}}"),
            stacked=True,
            span=8,
        ),
        graph(
            "Registered",
            "By kind. The kinds beyond the first fifty are `other`.",
            (rate("fanfold_registry_jobs_registered_total", "kind", REGISTRY), "{{kind}}"),
            unit=PER_SECOND,
            span=8,
        ),
        graph(
            "Settled",
            "By how they ended.",
            (rate("fanfold_registry_jobs_settled_total", "state", REGISTRY), "{{state}}"),
            unit=PER_SECOND,
            span=8,
        ),
        graph(
            "How long jobs lasted",
            "From their registration, of jobs that were settled.",
            *quantiles("fanfold_registry_job_duration_seconds", REGISTRY),
            unit=SECONDS,
        ),
        graph(
            "Jobs refused",
            "Because there are as many as may be, in all or for one principal.",
            (rate("fanfold_registry_jobs_refused_total", "limit", REGISTRY), "{{limit}}"),
            unit=PER_SECOND,
        ),
    )


def _producers() -> Panels:
    return (
        graph(
            "Producers",
            "Jobs by where their producers are. All away at once is the network, or a registry that has just started.",
            (f"max by (state) (fanfold_registry_producers{{{REGISTRY}}})", "{{state}}"),
            span=8,
        ),
        graph(
            "Jobs given up",
            "`producer_lost` stayed away; `not_stopped` was asked to stop and did not, and may still run.",
            (
                f"sum by (reason) (increase(fanfold_registry_jobs_given_up_total{{{REGISTRY}}}[$__rate_interval]))",
                "{{reason}}",
            ),
            span=8,
        ),
        graph(
            "Output",
            "Bytes that came, and those of live jobs that were dropped for newer ones.",
            (rate("fanfold_registry_output_bytes_total", "", REGISTRY), "came"),
            (rate("fanfold_registry_output_dropped_bytes_total", "", REGISTRY), "dropped"),
            unit=BYTES_PER_SECOND,
            span=8,
        ),
    )


def _registry() -> Panels:
    return (
        graph(
            "How long transactions took",
            "Until they were durable.",
            *quantiles("fanfold_database_transaction_duration_seconds", REGISTRY),
            unit=SECONDS,
            span=8,
        ),
        graph(
            "Not written",
            "Transactions that failed, and what waits to be written.",
            (rate("fanfold_database_errors_total", "kind", REGISTRY), "errors a second: {{kind}}"),
            (f"sum(fanfold_database_waiting_operations{{{REGISTRY}}})", "waiting"),
            span=8,
        ),
        graph(
            "Calls by status",
            "Calls of the registry that ended.",
            (
                rate("fanfold_rpc_handled_total", "code", f'{REGISTRY}, grpc_service="fanfold.v1.JobRegistry"'),
                "{{code}}",
            ),
            unit=PER_SECOND,
            span=8,
        ),
    )
