"""Runs and their events, there and back (C5)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

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
from fanfold.model.step import StepEnded, StepOutcome
from fanfold.wire.run import event_from_bytes, event_to_bytes

NOW = datetime(2026, 3, 4, 5, 6, 7, 89_000, tzinfo=UTC)
BUDGET = Budget(limit=1_000, spent=400, refused_steps=2)
RUN = Run(
    run_id="run-1",
    kind=RunKind.PIPELINE,
    state=RunState.CANCELLED,
    workflow_id="audit",
    owner="alice",
    attached=False,
    job_id="workflow-7",
    steps=StepCounts(total=5, running=1, succeeded=2, failed=1),
    budget=BUDGET,
    waiting_on="node x",
    created_at=NOW,
    ended_at=NOW,
    coordinator="c-1",
    reason="no longer needed",
)
OUTCOME = StepOutcome(task_id="a", agent="noop", output="done", success=True, attempts=1, ended_at=NOW)
EVENTS: list[RunEvent] = [
    RunStarted(sequence=1, time=NOW, run_id="run-1", total_steps=5),
    RunStepEvent(
        sequence=2, time=NOW, index=3, stage=1, event=StepEnded(task_id="a", time=NOW, outcome=OUTCOME), recalled=True
    ),
    StageFailed(sequence=3, time=NOW, index=3, stage=2, error="it raised"),
    StepChanged(sequence=4, time=NOW, key="3.1", reason="its prompt changed"),
    BudgetExhausted(sequence=5, time=NOW, budget=BUDGET),
    WaitingChanged(sequence=6, time=NOW, waiting_on=""),
    RunEnded(sequence=7, time=NOW, run=RUN, error="why"),
]


@pytest.mark.contract("C5")
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_comes_back_from_its_kept_form_as_it_was(event: RunEvent) -> None:
    assert event_from_bytes(event_to_bytes(event)) == event
