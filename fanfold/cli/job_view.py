"""Jobs, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from fanfold.cli.output import lasted
from fanfold.cli.printable import printable
from fanfold.cli.tables import Cell, Table, cell
from fanfold.model.job import Job, JobState, OutputSource

_STYLES = {JobState.COMPLETED: "green", JobState.KILLED: "yellow", JobState.FAILED: "red"}


def job_table(jobs: Iterable[Job]) -> Table:
    """One row a job."""
    rows = Table("JOB", "LABEL", "STATE", "OWNER", "STARTED", "TIME", "HOW IT FARES", whole=["JOB", "STATE"])
    for job in jobs:
        rows.add_row(
            cell(job.id),
            cell(job.label or "-"),
            state_cell(job),
            cell(job.owner or "(open)"),
            cell(moment(job.created_at)),
            cell(_time_of(job)),
            cell(fares(job)),
        )
    return rows


def state_cell(job: Job) -> Cell:
    """The job's state in its colour."""
    return cell(job.state, _STYLES.get(job.state, ""))


def fares(job: Job) -> str:
    """One line on how a job fares, or has ended."""
    if job.state.is_settled:
        return job.detail or "-"
    waiting = f"waiting for {job.waiting_on}" if job.waiting_on else ""
    return "; ".join(part for part in (job.progress, waiting) if part) or "-"


def job_in_words(job: Job) -> Iterator[str]:
    """All that there is to say about a job, a line each."""
    lines = [
        ("job", job.id),
        ("label", job.label),
        ("kind", job.kind),
        ("state", job.state),
        ("owner", job.owner or "open to everybody"),
        ("parent", job.parent),
        ("progress", job.progress),
        ("detail", job.detail),
        ("asked to stop", job.stop_reason),
        ("waiting on", job.waiting_on),
        ("started", moment(job.created_at)),
        ("ended", moment(job.settled_at)),
        ("took" if job.settled_at else "takes so far", _time_of(job)),
        *((f"output {source.name}", _source_in_words(source)) for source in job.sources),
        ("result", "yes" if job.has_result else ""),
    ]
    for name, value in lines:
        if value and value != "-":
            yield printable(f"{name:<13} {value}")


def _source_in_words(source: OutputSource) -> str:
    held = source.total_bytes - source.earliest_offset
    if not source.lossy:
        return f"{source.total_bytes:,} bytes"
    return f"{source.total_bytes:,} bytes, of which the last {held:,} are held"


def moment(time: datetime | None) -> str:
    """A time where the reader is."""
    return "-" if time is None else f"{time.astimezone():%Y-%m-%d %H:%M:%S}"


def _time_of(job: Job) -> str:
    if job.created_at is None:
        return "-"
    return lasted((job.settled_at or datetime.now(UTC)) - job.created_at)
