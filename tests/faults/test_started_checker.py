"""The checker of started runs finds what is wrong: each thing that must not happen, made up one at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fanfold.model.job import Job, JobState
from fanfold.model.run import Run, RunKind, RunState, StepCounts
from faults.started_storms import STEPS, Aftermath, Started, complaints, names_of


def started(name: str, state: RunState, job_state: JobState, done: int, **fields: Any) -> Started:
    """A run that ended with so many of its steps done, and was told so."""
    run: Any = SimpleNamespace(id=f"job-{name}")
    names = names_of(name)
    outcomes = [{"task_id": task, "success": True} if place < done else None for place, task in enumerate(names)]
    counts = StepCounts(total=STEPS, succeeded=done)
    ended = Run(run_id=f"run-{name}", kind=RunKind.PARALLEL, state=state, owner="a", steps=counts, reason="no more")
    return Started(
        name,
        run,
        ended=ended,
        job=Job(id=run.id, kind="parallel", label="d", state=job_state, owner="a", detail=f"{done} steps"),
        log="".join(f"12:00:00 {task}: ok\n" for task in names[:done]),
        result={"outcomes": outcomes},
        **fields,
    )


WHOLE = started("r0", RunState.COMPLETED, JobState.COMPLETED, STEPS)
STOPPED = started("r1", RunState.CANCELLED, JobState.KILLED, 2, asked_to_stop=True)
RAN = Counter([*names_of("r0"), *names_of("r1")[:3]])


def found(*runs: Started, ran: Counter[str] = RAN, jobs: list[Job] | None = None) -> list[str]:
    known = [run.job for run in runs if run.job is not None]
    return list(complaints(Aftermath(list(runs), known if jobs is None else jobs, ran)))


def test_a_storm_that_did_no_harm_gives_no_complaints() -> None:
    assert found(WHOLE, STOPPED) == []


def without_success(run: Started) -> Started:
    outcomes = [*run.result["outcomes"]]
    outcomes[1] = {**outcomes[1], "success": False}
    return replace(run, result={"outcomes": outcomes})


def with_job(run: Started, state: JobState) -> Started:
    assert run.job is not None
    return replace(run, job=replace(run.job, state=state))


@pytest.mark.parametrize(
    ("run", "complaint"),
    [
        (with_job(WHOLE, JobState.FAILED), "its run is completed (no more), its job failed (5 steps)"),
        (with_job(STOPPED, JobState.COMPLETED), "its run is cancelled (no more), its job completed (2 steps)"),
        (
            started("r0", RunState.FAILED, JobState.FAILED, STEPS),
            "its run is failed (no more), its job failed (5 steps)",
        ),
        (replace(STOPPED, asked_to_stop=False), "it was cancelled, and nobody asked for that: no more"),
        (replace(WHOLE, result={}, log=""), "its result has 0 outcomes"),
        (without_success(WHOLE), "r0-1 did not succeed"),
        (replace(WHOLE, log=WHOLE.log.partition("\n")[2]), "its log has"),
        (replace(WHOLE, log=WHOLE.log * 2), "its log has"),
        (replace(WHOLE, has_gap=True), "with a gap: True"),
    ],
)
def test_each_wrong_of_a_run_is_found(run: Started, complaint: str) -> None:
    told = found(run)
    assert any(complaint in each for each in told), told
    assert all(each.startswith(f"{run.name} (job-{run.name}): ") for each in told)


def test_a_step_that_ran_twice_and_one_that_never_ran_are_found() -> None:
    assert found(WHOLE, ran=RAN + Counter(["r0-2"])) == ["r0 (job-r0): r0-2 ran 2 times"]
    assert found(WHOLE, ran=RAN - Counter(["r0-2"])) == ["r0 (job-r0): r0-2 succeeded without having run"]


def test_jobs_of_nobody_and_runs_that_share_one_are_found() -> None:
    assert STOPPED.job is not None
    assert found(WHOLE, jobs=[STOPPED.job]) == ["job-r1 (killed: 2 steps) is nobody's"]
    assert "two runs are one job" in found(WHOLE, replace(STOPPED, run=WHOLE.run))


def test_errors_that_nobody_had_thought_of_are_found() -> None:
    assert list(complaints(Aftermath([], [], RAN, ["left: Traceback"]))) == ["left: Traceback"]
