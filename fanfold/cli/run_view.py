"""Runs, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from fanfold.cli.outcomes import budget_in_words
from fanfold.cli.output import lasted, show_document, show_text, tell
from fanfold.cli.printable import printable
from fanfold.cli.tables import Table, cell
from fanfold.model.run import Run, RunState, StepCounts
from fanfold.sdk.started import Started

SHORT_ID = len("run-") + 8
"""Characters of a run's id that are shown where it need not be whole."""

_STYLES = {RunState.COMPLETED: "green", RunState.CANCELLED: "yellow", RunState.FAILED: "red"}


def run_table(runs: Iterable[Run]) -> Table:
    """One row a run."""
    rows = Table("RUN", "WORKFLOW", "KIND", "STATE", "STEPS", "STARTED", "TIME", "WAITING ON", whole=["RUN", "STATE"])
    for run in runs:
        rows.add_row(
            cell(run.run_id[:SHORT_ID]),
            cell(run.workflow_id or "-"),
            cell(run.kind),
            cell(run.state, _STYLES.get(run.state, "")),
            cell(steps_in_words(run.steps)),
            cell(_moment(run.created_at)),
            cell(_time_of(run)),
            cell(run.waiting_on or "-"),
        )
    return rows


def run_in_words(run: Run) -> Iterator[str]:
    """All that there is to say about a run, a line each."""
    lines = [
        ("run", run.run_id),
        ("job", run.job_id),
        ("workflow", run.workflow_id),
        ("kind", f"{run.kind}, {'attached' if run.attached else 'detached'}"),
        ("state", run.state),
        ("reason", run.reason),
        ("steps", steps_in_words(run.steps)),
        ("budget", budget_in_words(run.budget) if run.budget else ""),
        ("waiting on", run.waiting_on),
        ("held by" if not has_ended(run) else "held last by", run.coordinator),
        ("started", _moment(run.created_at)),
        ("ended", _moment(run.ended_at)),
        ("took" if run.ended_at else "takes so far", _time_of(run)),
    ]
    for name, value in lines:
        if value and value != "-":
            yield printable(f"{name:<13} {value}")


def steps_in_words(steps: StepCounts) -> str:
    """As "60: 41 ok, 2 failed, 5 running"."""
    parts = [(steps.succeeded, "ok"), (steps.failed, "failed"), (steps.running, "running")]
    return f"{steps.total:,}: " + (", ".join(f"{count:,} {what}" for count, what in parts if count) or "none begun")


def has_ended(run: Run) -> bool:
    """Whether nothing of it runs any more."""
    return run.state in {RunState.COMPLETED, RunState.CANCELLED, RunState.FAILED}


def _moment(time: datetime | None) -> str:
    return "-" if time is None else f"{time.astimezone():%Y-%m-%d %H:%M:%S}"


def _time_of(run: Run) -> str:
    if run.created_at is None:
        return "-"
    return lasted((run.ended_at or datetime.now(UTC)) - run.created_at)


def show_started(run: Started, *, as_json: bool) -> None:
    """Print the ids of a run that was started as a job."""
    if as_json:
        show_document({"job_id": run.id, "run_id": run.run_id})
        return
    show_text([run.id])
    tell(f"Follow it with: fanfold jobs logs -f {run.id}")
