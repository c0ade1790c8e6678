"""Runs and their events as JSON, which scripts rely on (C5, C28)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

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
from fanfold.model.run_form import run_event_to_json, run_to_json
from fanfold.model.step import (
    StepEnded,
    StepOutcome,
    StepProgressed,
    StepStarted,
    ToolFinished,
)
from fanfold.model.trace import TraceContext

pytestmark = pytest.mark.contract("C5", "C28")

NOW = datetime(2026, 3, 1, 12, 30, 15, 500000, UTC)
TIME = "2026-03-01T12:30:15.500000Z"
RUN = Run(
    run_id="run-1",
    kind=RunKind.PIPELINE,
    state=RunState.CANCELLED,
    workflow_id="audit",
    owner="alice",
    steps=StepCounts(total=3, succeeded=2, failed=1),
    budget=Budget(limit=10, spent=4, refused_steps=1),
    created_at=NOW,
    ended_at=NOW,
    coordinator="c1",
    reason="enough",
)
RUN_FORM = {
    "run_id": "run-1",
    "kind": "pipeline",
    "state": "cancelled",
    "workflow_id": "audit",
    "owner": "alice",
    "attached": True,
    "job_id": "",
    "steps": {"total": 3, "running": 0, "succeeded": 2, "failed": 1},
    "budget": {"limit": 10, "spent": 4, "refused_steps": 1},
    "waiting_on": "",
    "created_at": TIME,
    "ended_at": TIME,
    "coordinator": "c1",
    "reason": "enough",
}
OUTCOME = StepOutcome(task_id="a", agent="noop", success=True, output="hi")
HEAD = {"sequence": 5, "time": TIME}
STEP = {"task_id": "a", "index": 2, "stage": 1, "recalled": False}


def test_a_run_has_snake_case_names_and_lower_case_words() -> None:
    assert json.loads(json.dumps(run_to_json(RUN))) == RUN_FORM


def step_event(event: Any, *, recalled: bool = False) -> RunStepEvent:
    return RunStepEvent(sequence=5, time=NOW, index=2, stage=1, event=event, recalled=recalled)


@pytest.mark.parametrize(
    ("event", "form"),
    [
        (
            RunStarted(sequence=5, time=NOW, run_id="run-1", total_steps=3),
            {**HEAD, "event": "run_started", "run_id": "run-1", "total_steps": 3},
        ),
        (
            RunStarted(sequence=5, time=NOW, run_id="run-1", total_steps=3, trace=TraceContext("00-a-b-01")),
            {
                **HEAD,
                "event": "run_started",
                "run_id": "run-1",
                "total_steps": 3,
                "trace": {"traceparent": "00-a-b-01", "tracestate": ""},
            },
        ),
        (
            step_event(StepStarted(task_id="a", time=NOW, session_id="s", node="n"), recalled=True),
            {**HEAD, "event": "step_started", **STEP, "recalled": True, "session_id": "s", "node": "n"},
        ),
        (
            step_event(
                StepProgressed(task_id="a", time=NOW, progress=ToolFinished(name="read", success=True, detail="a.md"))
            ),
            {
                **HEAD,
                "event": "step_progressed",
                **STEP,
                "progress": {"what": "tool_finished", "name": "read", "success": True, "detail": "a.md"},
            },
        ),
        (
            StageFailed(sequence=5, time=NOW, index=2, stage=1, error="no"),
            {**HEAD, "event": "stage_failed", "index": 2, "stage": 1, "error": "no"},
        ),
        (
            StepChanged(sequence=5, time=NOW, key="a", reason="its prompt changed"),
            {**HEAD, "event": "step_changed", "key": "a", "reason": "its prompt changed"},
        ),
        (
            BudgetExhausted(sequence=5, time=NOW, budget=Budget(limit=10)),
            {**HEAD, "event": "budget_exhausted", "budget": {"limit": 10, "spent": 0, "refused_steps": 0}},
        ),
        (
            WaitingChanged(sequence=5, time=NOW, waiting_on="a place"),
            {**HEAD, "event": "waiting_changed", "waiting_on": "a place"},
        ),
        (
            RunEnded(sequence=5, time=NOW, run=RUN, error="no"),
            {**HEAD, "event": "run_ended", "run": RUN_FORM, "error": "no"},
        ),
    ],
)
def test_every_event_says_what_it_is(event: RunEvent, form: dict[str, Any]) -> None:
    assert json.loads(json.dumps(run_event_to_json(event))) == form


def test_a_step_that_ended_has_its_whole_outcome() -> None:
    form = run_event_to_json(step_event(StepEnded(task_id="a", time=NOW, outcome=OUTCOME)))
    assert (form["event"], form["task_id"]) == ("step_ended", "a")
    assert (form["outcome"]["output"], form["outcome"]["failure"]) == ("hi", None)
