"""The checker of fault runs complains of what must never be, and only of that."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from fanfold.model.step import (
    AttemptStarted,
    FailureCode,
    StepEnded,
    StepEvent,
    StepFailure,
    StepOutcome,
    StepProgressed,
    StepStarted,
)
from faults.checker import AFTER_WAKING, LAST_MOMENTS, Execution, History, complaints, executions_of
from faults.subjects import Span

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOST = StepFailure(code=FailureCode.NODE_LOST, message="lost", retryable=True)
STARTED = StepStarted(task_id="a", time=NOW, node="node-1")


def execution(name: str, node: str, *alive: float, has_ended: bool = True) -> Execution:
    return Execution(name, "a", node, 1, alive, has_ended)


KILLED = execution("first", "node-1", 1.0, 1.5, 2.0, has_ended=False)
SECOND = execution("second", "node-2", 3.0, 3.5, 4.0)
OUTCOME = StepOutcome(task_id="a", agent="shell", output="second", success=True, attempts=2, node="node-2")


def again(attempt: int) -> StepProgressed:
    return StepProgressed(task_id="a", time=NOW, progress=AttemptStarted(attempt=attempt, node="node-2", cause=LOST))


def history(
    *executions: Execution,
    outcome: StepOutcome = OUTCOME,
    events: list[StepEvent] | None = None,
    freezes: tuple[Span, ...] = (),
    drains: tuple[Span, ...] = (),
) -> History:
    """A step that was lost with its first node and ended on its second, but for what is given."""
    told: list[StepEvent] = [STARTED, again(2), StepEnded(task_id="a", time=NOW, outcome=outcome)]
    return History(
        task_ids=["a"],
        outcomes=[outcome],
        events=told if events is None else events,
        executions=executions or (KILLED, SECOND),
        freezes=freezes,
        drains=drains,
    )


def test_a_step_that_ran_again_after_its_node_was_lost_is_well() -> None:
    assert complaints(history()) == []


def test_lines_of_executions_become_their_lives() -> None:
    lines = [
        "start x 2.0 a node-1 7 0",
        "start y 1.0 b node-2 8 0",
        "beat x 2.5 a node-1 7 20",
        "end x 3.0 a node-1 7 40",
    ]
    y, x = executions_of(lines)
    assert x == Execution("x", "a", "node-1", 7, (2.0, 2.5, 3.0), has_ended=True, spent=40)
    assert y == Execution("y", "b", "node-2", 8, (1.0,), has_ended=False)


def test_two_executions_alive_at_once_are_complained_of() -> None:
    (complaint,) = complaints(history(replace(KILLED, alive=(1.0, 3.2)), SECOND))
    assert complaint.startswith("a: first on node-1 was alive 0.200 s after second had begun on node-2")


def test_an_execution_may_begin_in_the_moment_in_which_the_one_before_it_was_last_alive() -> None:
    assert complaints(history(replace(KILLED, alive=(1.0, SECOND.began)), SECOND)) == []


def test_an_overlap_that_the_first_survives_is_complained_of() -> None:
    assert any("was alive" in each for each in complaints(history(execution("first", "node-1", 1.0, 9.0), SECOND)))


@pytest.mark.parametrize(
    ("freeze", "is_well"),
    [
        pytest.param(Span("node-1", 1.5, 3.1), True, id="just woken"),
        pytest.param(Span("node-1", 1.5, 3.2), True, id="woken at that moment"),
        pytest.param(Span("node-1", 1.5, 3.2 - AFTER_WAKING), True, id="woken just not too long ago"),
        pytest.param(Span("node-1", 1.5, 2.6), False, id="woken long ago"),
        pytest.param(Span("node-1", 1.5, 3.3), False, id="while it was frozen"),
        pytest.param(Span("node-2", 1.5, 3.1), False, id="another node was frozen"),
    ],
)
def test_only_the_first_moments_of_a_woken_node_are_excused(freeze: Span, *, is_well: bool) -> None:
    found = complaints(history(replace(KILLED, alive=(1.0, 1.4, 3.2)), SECOND, freezes=(freeze,)))
    assert (not found) is is_well


def test_a_run_more_than_attempts_is_complained_of() -> None:
    once = replace(OUTCOME, attempts=1)
    events: list[StepEvent] = [STARTED, StepEnded(task_id="a", time=NOW, outcome=once)]
    (complaint,) = complaints(history(outcome=once, events=events))
    assert complaint.startswith("a: ran 2 times in 1 attempts, 0 handed back, 0 forgotten")
    assert "first on node-1 began 1.000, was killed 2.000, second on node-2 began 3.000, ended 4.000" in complaint


@pytest.mark.parametrize(
    ("drain", "is_well"),
    [
        pytest.param(Span("node-1", 1.7, 2.2), True, id="in its last moments"),
        pytest.param(Span("node-1", 2.0 + LAST_MOMENTS, 9.0), True, id="just before them"),
        pytest.param(Span("node-1", 2.1 + LAST_MOMENTS, 9.0), False, id="too long before them"),
        pytest.param(Span("node-1", 1.0, 2.0 - LAST_MOMENTS), True, id="just after them"),
        pytest.param(Span("node-1", 1.0, 1.9 - LAST_MOMENTS), False, id="too long after them"),
        pytest.param(Span("node-2", 1.7, 2.2), False, id="of another node"),
    ],
)
def test_only_what_was_last_alive_when_a_drain_ended_was_handed_back(drain: Span, *, is_well: bool) -> None:
    once = replace(OUTCOME, attempts=1)
    events: list[StepEvent] = [STARTED, StepEnded(task_id="a", time=NOW, outcome=once)]
    assert KILLED.last_alive == 2.0
    assert (not complaints(history(outcome=once, events=events, drains=(drain,)))) is is_well


@pytest.mark.parametrize(
    ("executions", "complaint"),
    [
        ((KILLED,), "a: no execution gave its outcome, 'second'"),
        ((KILLED, replace(SECOND, has_ended=False)), "a: its outcome is of second, which has not ended"),
        ((KILLED, replace(SECOND, node="node-3")), "a: its outcome is of node-3 and says node-2"),
        ((SECOND, execution("late", "node-1", 5.0)), "a: late began after second, which gave the outcome"),
    ],
)
def test_an_outcome_of_anything_but_the_last_execution_is_complained_of(
    executions: tuple[Execution, ...], complaint: str
) -> None:
    assert complaints(history(*executions)) == [complaint]


def test_a_failed_step_is_complained_of() -> None:
    failed = replace(OUTCOME, success=False, failure=LOST)
    (complaint,) = complaints(history(outcome=failed))
    assert complaint.startswith("a: failed after 2 attempts")


ENDED = StepEnded(task_id="a", time=NOW, outcome=OUTCOME)


@pytest.mark.parametrize(
    ("events", "complaint"),
    [
        ([], "a: it must start once, and first: nothing"),
        ([STARTED, STARTED, ENDED], "a: it must start once, and first: StepStarted, StepStarted, StepEnded"),
        ([again(2), STARTED, ENDED], "a: it must start once, and first: StepProgressed, StepStarted, StepEnded"),
        ([STARTED], "a: it must end once, and last: StepStarted"),
        ([STARTED, ENDED, ENDED], "a: it must end once, and last: StepStarted, StepEnded, StepEnded"),
        ([STARTED, ENDED, again(2)], "a: it must end once, and last: StepStarted, StepEnded, StepProgressed"),
        ([STARTED, again(3), again(2), ENDED], "a: attempts [3, 2] were told of 2"),
        ([STARTED, again(1), ENDED], "a: attempts [1] were told of 2"),
        (
            [STARTED, StepEnded(task_id="a", time=NOW, outcome=replace(OUTCOME, node="node-3"))],
            "a: the outcome that was told is not the one that was given",
        ),
    ],
)
def test_a_life_that_is_told_out_of_order_is_complained_of(events: list[StepEvent], complaint: str) -> None:
    assert complaint in complaints(history(events=events))


def test_attempts_that_are_told_in_another_order_are_complained_of() -> None:
    thrice = replace(OUTCOME, attempts=3)
    ended = StepEnded(task_id="a", time=NOW, outcome=thrice)
    assert complaints(history(outcome=thrice, events=[STARTED, again(2), again(3), ended])) == []
    (complaint,) = complaints(history(outcome=thrice, events=[STARTED, again(3), again(2), ended]))
    assert complaint == "a: attempts [3, 2] were told of 3"


def test_outcomes_that_are_not_the_steps_in_their_order_are_complained_of() -> None:
    good = history()
    other = replace(OUTCOME, task_id="b")
    for outcomes in ([], [OUTCOME, OUTCOME], [other, OUTCOME]):
        assert any("in their order" in each for each in complaints(replace(good, outcomes=outcomes)))


def test_a_step_that_nobody_asked_for_is_complained_of() -> None:
    stray = replace(SECOND, name="stray", task_id="z")
    assert complaints(history(KILLED, SECOND, stray)) == ["z: nobody asked for it"]
