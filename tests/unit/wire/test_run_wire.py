"""Runs and their events, there and back (C5)."""

from __future__ import annotations

from dataclasses import replace
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
from fanfold.model.step import StepEnded, StepOutcome, StepProgressed, StepStarted, TextWritten
from fanfold.model.trace import TraceContext
from fanfold.v1 import run_pb2, step_pb2
from fanfold.wire.encoded import relayed_event_from_proto
from fanfold.wire.run import event_from_bytes, event_into, event_to_bytes
from fanfold.wire.step import event_to_proto

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
TRACEPARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
OUTCOME = StepOutcome(task_id="a", agent="noop", output="done", success=True, attempts=1, ended_at=NOW)
EVENTS: list[RunEvent] = [
    RunStarted(sequence=1, time=NOW, run_id="run-1", total_steps=5),
    RunStarted(sequence=1, time=NOW, run_id="run-1", total_steps=5, trace=TraceContext(TRACEPARENT, "vendor=1")),
    RunStepEvent(
        sequence=2, time=NOW, index=3, stage=1, event=StepEnded(task_id="a", time=NOW, outcome=OUTCOME), recalled=True
    ),
    RunStepEvent(
        sequence=300_000,
        time=NOW,
        index=20_000,
        event=StepStarted(task_id="ä", time=NOW, session_id="s" * 200, node="node-1"),
    ),
    RunStepEvent(
        sequence=0,
        time=NOW,
        index=0,
        event=StepProgressed(task_id="a", time=NOW, progress=TextWritten(text="x")),
        budget_spent=0,
    ),
    RunStepEvent(
        sequence=2**40,
        time=datetime(1969, 1, 1, tzinfo=UTC),
        index=127,
        event=StepStarted(task_id="a", time=datetime(1969, 1, 1, tzinfo=UTC)),
    ),
    StageFailed(sequence=3, time=NOW, index=3, stage=2, error="it raised"),
    StepChanged(sequence=4, time=NOW, key="3.1", reason="its prompt changed"),
    BudgetExhausted(sequence=5, time=NOW, budget=BUDGET),
    WaitingChanged(sequence=6, time=NOW, waiting_on=""),
    RunEnded(sequence=7, time=NOW, run=RUN, error="why"),
    RunEnded(sequence=8, time=NOW, run=RUN, error="why", out_of_quota=True),
]


@pytest.mark.contract("C5")
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_comes_back_from_its_kept_form_as_it_was(event: RunEvent) -> None:
    assert event_from_bytes(event_to_bytes(event)) == event


def ended_as_it_came(outcome: StepOutcome, *, more: bytes = b"") -> StepEnded:
    """A step's end as a coordinator has it from a node, whose outcome has `more` fields than are known here."""
    message = event_to_proto(StepEnded(task_id="a", time=NOW, outcome=outcome))
    message.ended.outcome.MergeFromString(more)
    event = relayed_event_from_proto(message)
    assert isinstance(event, StepEnded)
    return event


def told(event: StepEnded) -> RunStepEvent:
    return RunStepEvent(sequence=7, time=event.time, index=5, event=event)


@pytest.mark.contract("C5")
def test_an_end_is_passed_on_as_it_came_in_with_what_only_a_newer_node_knows() -> None:
    newer = bytes([0xA2, 0x06, 3]) + b"new"  # field 100
    event = ended_as_it_came(OUTCOME, more=newer)
    passed_on = run_pb2.RunEvent.FromString(event_to_bytes(told(event)))
    assert passed_on.step.event.SerializeToString(deterministic=True).count(newer) == 1
    assert passed_on.step.event.ended.outcome.output == "done"
    assert (passed_on.sequence, passed_on.step.index) == (7, 5)
    assert passed_on.SerializeToString() == event_into(told(event), run_pb2.RunEvent()).SerializeToString()


@pytest.mark.contract("C2")
def test_an_outcome_that_was_changed_is_told_as_it_was_changed() -> None:
    event = ended_as_it_came(OUTCOME)
    assert event.outcome.encoded_end
    changed = replace(event, outcome=replace(event.outcome, attempts=2, output="corrected"))
    assert event_from_bytes(event_to_bytes(told(changed))) == told(changed)


@pytest.mark.parametrize("outcome", [replace(OUTCOME, task_id="another"), replace(OUTCOME, ended_at=None)])
def test_an_end_that_contradicts_its_outcome_is_not_passed_on_as_it_is(outcome: StepOutcome) -> None:
    assert ended_as_it_came(outcome).outcome.encoded_end == b""


def test_what_came_in_is_no_part_of_what_an_outcome_says() -> None:
    event = ended_as_it_came(OUTCOME)
    assert event.outcome == OUTCOME
    assert hash(event.outcome) == hash(OUTCOME)
    assert step_pb2.StepEvent.FromString(event.outcome.encoded_end).task_id == "a"


def test_what_is_said_to_be_a_trace_and_is_none_is_passed_over() -> None:
    event = RunStarted(sequence=1, time=NOW, run_id="run-1", total_steps=5)
    message = run_pb2.RunEvent.FromString(event_to_bytes(event))
    message.started.trace.traceparent = "nonsense"
    assert event_from_bytes(message.SerializeToString()) == event
