"""What every journal refuses, and in which words."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol, TypeVar

from coordinator.journal.journal import Append, Fenced, Holder, Namesake, NameTaken
from fanfold.errors import Aborted, InternalError
from fanfold.model.run import Run, RunState


class _Standing(Protocol):
    """What is asked of a run, however it is kept."""

    @property
    def epoch(self) -> int: ...
    @property
    def ended_at(self) -> int | None: ...
    @property
    def last_sequence(self) -> int: ...
    @property
    def workflow_id(self) -> str: ...


_Run = TypeVar("_Run", bound=_Standing)


def held(run: _Run | None, epoch: int) -> _Run:
    """The run. Raises Fenced unless it is kept, has this epoch and has not ended."""
    if run is None or run.epoch != epoch or run.ended_at is not None:
        raise Fenced
    return run


def frees_request(run: Run) -> bool:
    """Whether a run leaves its request id to the next one (C18): not if it is a job, which that id is to find again."""
    return run.state in {RunState.CANCELLED, RunState.FAILED} and not run.job_id


def is_repeated(append: Append, run: _Standing | None) -> bool:
    """Whether an append was written before, and only its answer was lost."""
    if run is None or run.epoch != append.epoch or not append.entries:
        return False
    return append.entries[-1].sequence <= run.last_sequence


def refuse_misfit(append: Append, run: _Standing) -> None:
    """Raise InternalError for entries that do not follow the last kept one, and for records of no workflow."""
    entries = append.entries
    if entries and entries[0].sequence != run.last_sequence + 1:
        raise InternalError(
            f"events {entries[0].sequence} to {entries[-1].sequence} of {append.run_id} do not follow "
            f"{run.last_sequence}"
        )
    if append.records and not run.workflow_id:
        raise InternalError(f"{append.run_id} has no workflow to keep records of")


def workflow_held(workflow_id: str, run_id: str, since: datetime) -> Aborted:
    """The refusal while a run that has not ended has the workflow (C18)."""
    return Aborted(
        f"workflow {workflow_id!r} is held by {run_id} since {since:%Y-%m-%d %H:%M:%S} UTC", reason="WORKFLOW_HELD"
    )


def name_taken(holder: Holder, namesake: Namesake) -> NameTaken:
    """What a coordinator is told whose name another life has."""
    at = f" at {namesake.address}" if namesake.address else ""
    return NameTaken(f"the coordinator{at} is called {holder.name!r} now (name)")
