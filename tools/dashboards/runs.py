"""Runs: how they fare, what they wait on, what their steps come to and cost, and the journal that keeps them."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from tools.dashboards.panels import PER_SECOND, RATIO, SECONDS, Panels, dashboard, figure, graph, quantiles, rate

COORDINATOR = 'instance=~"$coordinator"'
FAILED = f'{COORDINATOR}, code!="OK"'
OUT_OF_QUOTA = f'{COORDINATOR}, code="QUOTA_EXHAUSTED"'


def page() -> Dashboard:
    """Whether runs get on, and what holds them up if they do not."""
    return dashboard(
        "runs",
        "Runs",
        "Runs, what they wait on, what their steps come to and cost, and the journal that keeps them.",
        {"coordinator": "fanfold_coordinator_runs"},
        {
            "Now": _now(),
            "Runs": _runs(),
            "Steps": _steps(),
            "Tokens and budgets": _tokens(),
            "Journal and leases": _journal(),
        },
    )


def _now() -> Panels:
    return (
        figure("Runs", "Runs that are carried out.", f"sum(fanfold_coordinator_runs{{{COORDINATOR}}})", span=4),
        figure(
            "Runs waiting",
            "Runs of which nothing moves. `fanfold runs list --state running` shows what each waits on.",
            f"sum(fanfold_coordinator_runs_waiting{{{COORDINATOR}}})",
            warn=1,
        ),
        figure(
            "Longest wait",
            "Since nothing has moved of the run that waits longest.",
            f"max(fanfold_coordinator_longest_wait_seconds{{{COORDINATOR}}})",
            unit=SECONDS,
            warn=300,
            alarm=900,
        ),
        figure(
            "Steps failed",
            "Of the steps that ended lately, after all their attempts.",
            f"(sum(increase(fanfold_coordinator_steps_ended_total{{{FAILED}}}[15m])) or vector(0)) / "
            f"(sum(increase(fanfold_coordinator_steps_ended_total{{{COORDINATOR}}}[15m])) > 0)",
            unit=RATIO,
            warn=0.05,
            alarm=0.25,
        ),
        figure(
            "Runs failed",
            "Runs that could not go on, in the time shown. A failed step does not make a failed run.",
            f'sum(increase(fanfold_coordinator_runs_ended_total{{{COORDINATOR}, state="failed"}}[$__range]))',
            warn=1,
        ),
        figure(
            "Tokens",
            "Tokens that steps have spent, in the time shown.",
            f"sum(increase(fanfold_coordinator_tokens_total{{{COORDINATOR}}}[$__range]))",
        ),
    )


def _runs() -> Panels:
    return (
        graph(
            "Runs by kind",
            "Runs that are carried out.",
            (f"sum by (kind) (fanfold_coordinator_runs{{{COORDINATOR}}})", "{{kind}}"),
            stacked=True,
        ),
        graph(
            "What runs wait on",
            "Runs of which nothing moves, by what most of their steps wait on. Each has its "
            "own remedy: `place` more nodes, `node` a node that comes back, `quota` the model's provider, `tokens` the "
            "budget, `caller` a caller that went away, `journal` the database, `registry` the job registry.",
            (f"sum by (on) (fanfold_coordinator_runs_waiting{{{COORDINATOR}}})", "{{on}}"),
            stacked=True,
        ),
        graph(
            "Runs that ended",
            "By how they ended.",
            (rate("fanfold_coordinator_runs_ended_total", "state", COORDINATOR), "{{state}}"),
            unit=PER_SECOND,
            span=8,
        ),
        graph(
            "How long runs lasted",
            "From their acceptance, of runs that ended.",
            *quantiles("fanfold_coordinator_run_duration_seconds", COORDINATOR),
            unit=SECONDS,
            span=8,
        ),
        graph(
            "Processes of scripts",
            "`spare` ones wait for a script, so that it begins at once.",
            (f"sum by (state) (fanfold_coordinator_script_processes{{{COORDINATOR}}})", "{{state}}"),
            span=8,
        ),
    )


def _steps() -> Panels:
    return (
        graph(
            "Steps that ended",
            "After all their attempts, by what came of them.",
            (rate("fanfold_coordinator_steps_ended_total", "code", COORDINATOR), "{{code}}"),
            unit=PER_SECOND,
            stacked=True,
        ),
        graph(
            "Failed steps by agent",
            "The ten agents that fail most.",
            (
                f"topk(10, {rate('fanfold_coordinator_steps_ended_total', 'agent, code', FAILED)})",
                "{{agent}}: {{code}}",
            ),
            unit=PER_SECOND,
        ),
        graph(
            "How long steps lasted",
            "Half of an agent's steps last no longer; the ten slowest agents.",
            (
                "topk(10, histogram_quantile(0.5, "
                f"{rate('fanfold_coordinator_step_duration_seconds_bucket', 'agent, le', COORDINATOR)}))",
                "{{agent}}",
            ),
            unit=SECONDS,
        ),
        graph(
            "Further attempts",
            "By what the attempt before ended with. NODE_LOST costs no more than time; others are the agents' own.",
            (f"{rate('fanfold_coordinator_step_retries_total', 'code', COORDINATOR)} > 0", "{{code}}"),
            unit=PER_SECOND,
        ),
    )


def _tokens() -> Panels:
    return (
        graph(
            "Tokens by agent",
            "The ten agents that spend most.",
            (f"topk(10, {rate('fanfold_coordinator_tokens_total', 'agent', COORDINATOR)})", "{{agent}}"),
            unit=PER_SECOND,
            stacked=True,
            span=8,
        ),
        graph(
            "Calls of models",
            "By agent, the ten with the most.",
            (f"topk(10, {rate('fanfold_coordinator_model_requests_total', 'agent', COORDINATOR)})", "{{agent}}"),
            unit=PER_SECOND,
            span=8,
        ),
        graph(
            "Budgets",
            "Of all runs that are carried out, added up. Spent and reserved together never exceed the limit.",
            (f"sum by (state) (fanfold_coordinator_budget_tokens{{{COORDINATOR}}})", "{{state}}"),
            span=8,
        ),
        graph(
            "Budgets that were used up",
            "Runs whose budget had no room for a step, and the steps that were refused for it.",
            (f"sum(increase(fanfold_coordinator_budgets_exhausted_total{{{COORDINATOR}}}[$__rate_interval]))", "runs"),
            (
                f"sum(increase(fanfold_coordinator_budget_refused_steps_total{{{COORDINATOR}}}[$__rate_interval]))",
                "steps",
            ),
        ),
        graph(
            "Quotas that were used up",
            "Steps that ended because their model's provider said no for good.",
            (
                rate("fanfold_coordinator_steps_ended_total", "agent", OUT_OF_QUOTA),
                "{{agent}}",
            ),
            unit=PER_SECOND,
        ),
    )


def _journal() -> Panels:
    return (
        graph(
            "How long appends took",
            "Until a run's events were durable. Every step of a journaled run waits for it.",
            *quantiles("fanfold_coordinator_journal_append_duration_seconds", COORDINATOR),
            unit=SECONDS,
            span=8,
        ),
        graph(
            "Written at once",
            "On average: events in an append, and operations that shared a transaction. Both grow with load.",
            (_average("fanfold_coordinator_journal_append_events"), "events"),
            (_average("fanfold_database_transaction_operations"), "operations"),
            span=8,
        ),
        graph(
            "Not written",
            "Appends and renewals that failed, and transactions; and what waits to be written.",
            (rate("fanfold_coordinator_journal_failures_total", "", COORDINATOR), "failures a second"),
            (rate("fanfold_database_errors_total", "kind", COORDINATOR), "errors a second: {{kind}}"),
            (f"sum(fanfold_database_waiting_operations{{{COORDINATOR}}})", "waiting"),
            span=8,
        ),
        graph(
            "Runs held",
            "Runs of the journal by the coordinator that holds them.",
            (f"fanfold_coordinator_leases{{{COORDINATOR}}}", "{{instance}}"),
            stacked=True,
            span=8,
        ),
        graph(
            "Runs that changed hands",
            "Deploys hand over and take over. `lost` means that a lease could not be renewed in time.",
            (
                f"{rate('fanfold_coordinator_lease_changes_total', 'change', COORDINATOR)}",
                "{{change}}",
            ),
            unit=PER_SECOND,
            span=8,
        ),
        graph(
            "How long renewals took",
            "Of the leases of all runs of a coordinator, in one statement. Far below the lease (10 s by default).",
            *quantiles("fanfold_coordinator_lease_renewal_duration_seconds", COORDINATOR),
            unit=SECONDS,
            span=8,
        ),
    )


def _average(histogram: str) -> str:
    return f"{rate(f'{histogram}_sum', '', COORDINATOR)} / ({rate(f'{histogram}_count', '', COORDINATOR)} > 0)"
