"""What people are told about runs and their events."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from fanfold.cli import watching
from fanfold.cli.run_view import run_in_words, run_table, steps_in_words
from fanfold.model.run import (
    Budget,
    BudgetExhausted,
    Run,
    RunEnded,
    RunEvent,
    RunKind,
    RunStarted,
    RunState,
    RunStepEvent,
    StageFailed,
    StepChanged,
    StepCounts,
    WaitingChanged,
)
from fanfold.model.step import FailureCode, StepEnded, StepFailure, StepOutcome, StepStarted

NOW = datetime(2026, 3, 1, 12, 30, 15, tzinfo=UTC)
RUN = Run(
    run_id="run-0123456789abcdef",
    kind=RunKind.PARALLEL,
    state=RunState.RUNNING,
    workflow_id="audit",
    steps=StepCounts(total=1060, running=5, succeeded=1041, failed=2),
    budget=Budget(limit=50_000, spent=1_200, refused_steps=1),
    waiting_on="a place: every node is full\x1b[2J",
    created_at=NOW,
    coordinator="c1",
)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (StepCounts(), "0: none begun"),
        (StepCounts(total=3), "3: none begun"),
        (StepCounts(total=1060, running=5, succeeded=1041, failed=2), "1,060: 1,041 ok, 2 failed, 5 running"),
    ],
)
def test_steps_are_counted_in_words(steps: StepCounts, words: str) -> None:
    assert steps_in_words(steps) == words


def test_a_run_that_goes_on_says_who_holds_it_and_what_it_waits_on() -> None:
    facts = dict(re.split(r" {2,}", line, maxsplit=1) for line in run_in_words(RUN))
    del facts["started"], facts["takes so far"]
    assert facts == {
        "run": "run-0123456789abcdef",
        "workflow": "audit",
        "kind": "parallel, attached",
        "state": "running",
        "steps": "1,060: 1,041 ok, 2 failed, 5 running",
        "budget": "1,200 of 50,000 tokens spent, 1 step refused",
        "waiting on": "a place: every node is full",
        "held by": "c1",
    }


def test_a_run_that_has_ended_says_when_and_why() -> None:
    ended = Run(
        run_id="run-1",
        kind=RunKind.PARALLEL,
        state=RunState.CANCELLED,
        created_at=NOW,
        ended_at=NOW + timedelta(minutes=3, seconds=20),
        reason="enough",
    )
    facts = dict(re.split(r" {2,}", line, maxsplit=1) for line in run_in_words(ended))
    assert (facts["reason"], facts["took"]) == ("enough", "3 min 20 s")
    assert not {"workflow", "budget", "waiting on", "held by", "held last by"} & facts.keys()
    (_, row) = run_table([ended]).lines()
    cells = [cell.text.strip() for cell in row]
    assert [*cells[:5], *cells[6:]] == ["run-1", "-", "parallel", "cancelled", "0: none begun", "3 min 20 s", "-"]


def step_event(event: StepStarted | StepEnded, *, recalled: bool = False) -> RunStepEvent:
    return RunStepEvent(sequence=5, time=NOW, index=0, event=event, recalled=recalled)


def ended(*, failure: StepFailure | None = None) -> StepEnded:
    outcome = StepOutcome(
        task_id="a",
        agent="noop",
        success=failure is None,
        failure=failure,
        started_at=NOW,
        ended_at=NOW + timedelta(seconds=3.2),
    )
    return StepEnded(task_id="a", time=NOW, outcome=outcome)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (RunStarted(sequence=1, time=NOW, run_id=RUN.run_id, total_steps=1060), "run-01234567 started: 1,060 steps"),
        (step_event(StepStarted(task_id="a", time=NOW, session_id="s", node="n")), "a started on n"),
        (step_event(StepStarted(task_id="a", time=NOW, session_id="", node="")), "a started"),
        (step_event(StepStarted(task_id="a", time=NOW, session_id="s", node="n"), recalled=True), "a is recorded"),
        (step_event(ended()), "a ok, took 3.20 s"),
        (step_event(ended(), recalled=True), "a ok, took 3.20 s, recorded before"),
        (
            step_event(ended(failure=StepFailure(code=FailureCode.CRASHED, message="\nkilled\nmore"))),
            "a CRASHED: killed",
        ),
        (StageFailed(sequence=5, time=NOW, index=2, stage=1, error="no"), "item 2, stage 1 failed: no"),
        (StepChanged(sequence=5, time=NOW, key="a", reason="its prompt changed"), "a runs again: its prompt changed"),
        (
            BudgetExhausted(sequence=5, time=NOW, budget=Budget(limit=1000, spent=990)),
            "the budget has no room for further steps: 990 of 1,000 tokens spent",
        ),
        (WaitingChanged(sequence=5, time=NOW, waiting_on="a place"), "waiting for a place"),
        (WaitingChanged(sequence=5, time=NOW, waiting_on=""), "waiting no more"),
        (
            RunEnded(sequence=5, time=NOW, run=Run(run_id="r", kind=RunKind.PARALLEL, state=RunState.COMPLETED)),
            "run completed: 0: none begun",
        ),
        (
            RunEnded(
                sequence=5, time=NOW, run=Run(run_id="r", kind=RunKind.PARALLEL, state=RunState.FAILED), error="no"
            ),
            "run failed: 0: none begun (no)",
        ),
    ],
)
def test_events_are_told_in_a_line_each(event: RunEvent, words: str) -> None:
    assert watching._in_words(event) == words
