"""The checker of journaled runs complains of what must never be, and only of that."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from fanfold.model.run import Budget, Run, RunEnded, RunEvent, RunKind, RunStarted, RunState, RunStepEvent
from fanfold.model.step import FailureCode, StepEnded, StepFailure, StepOutcome, StepStarted, Usage
from faults.checker import LAST_MOMENTS, Execution, History
from faults.journal_checker import Asked, JournalHistory, Sighting, journal_complaints
from faults.subjects import Span

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STARTED = StepStarted(task_id="a", time=NOW, node="node-1")
OUTCOME = StepOutcome(
    task_id="a", agent="spends", output="first", success=True, attempts=1, node="node-1", usage=Usage(output_tokens=40)
)
REFUSED = replace(
    OUTCOME,
    output="",
    success=False,
    attempts=0,
    failure=StepFailure(code=FailureCode.BUDGET_EXHAUSTED, message="too little is left"),
)
FIRST = Execution("first", "a", "node-1", 1, (1.0, 2.0), has_ended=True, spent=40)
KILLED = replace(FIRST, name="killed", alive=(0.5, 0.8), has_ended=False, spent=20)
RUN = Run(run_id="run-1", kind=RunKind.PARALLEL, state=RunState.COMPLETED)


def ended(outcome: StepOutcome = OUTCOME, sequence: int = 2) -> RunStepEvent:
    event = StepEnded(task_id=outcome.task_id, time=NOW, outcome=outcome)
    return RunStepEvent(sequence=sequence, time=NOW, index=0, event=event)


KEPT: list[RunEvent] = [
    RunStarted(sequence=1, time=NOW, run_id="run-1", total_steps=1),
    ended(),
    RunEnded(sequence=3, time=NOW, run=RUN),
]


def history(*executions: Execution, outcome: StepOutcome = OUTCOME, **other: Any) -> JournalHistory:
    """A step that ran once and was recorded when it had ended, but for what is given."""
    of_steps = {
        name: other.pop(name) for name in ("budget", "needs", "losses", "expiries", "takeovers") if name in other
    }
    steps = History(
        task_ids=["a"],
        outcomes=[outcome],
        events=[STARTED, StepEnded(task_id="a", time=NOW, outcome=outcome)],
        executions=executions or (FIRST,),
        **of_steps,
    )
    usual: dict[str, Any] = {
        "given": [outcome],
        "expected": [outcome],
        "asked": [],
        "run_id": "run-1",
        "heard": [Sighting(2.2, "a", "first")],
        "records": [Sighting(2.1, "a", "first")],
        "runs": [RUN],
        "kept": [KEPT[0], ended(outcome), KEPT[2]],
    }
    return JournalHistory(steps=steps, **usual | other)


def test_a_run_whose_step_ended_before_it_was_recorded_is_well() -> None:
    assert journal_complaints(history()) == []


@pytest.mark.parametrize(
    ("runs", "found"),
    [
        ([], "[]"),
        ([replace(RUN, state=RunState.FAILED)], "[('run-1', <RunState.FAILED: 'failed'>)]"),
        ([replace(RUN, run_id="run-2")], "[('run-2', <RunState.COMPLETED: 'completed'>)]"),
    ],
)
def test_a_run_that_was_lost_or_begun_again_is_complained_of(runs: list[Run], found: str) -> None:
    assert journal_complaints(history(runs=runs)) == [f"run-1 was accepted, and there are {found}"]
    assert len(journal_complaints(history(runs=[RUN, RUN]))) == 1


@pytest.mark.parametrize(
    ("kept", "complaint"),
    [
        ([KEPT[0], replace(KEPT[1], sequence=3), replace(KEPT[2], sequence=4)], "events are kept with the numbers"),
        (KEPT[:2], "the kept events do not begin"),
        ([ended(sequence=1), replace(KEPT[2], sequence=2)], "the kept events do not begin"),
        ([KEPT[0], replace(KEPT[2], sequence=2)], "the kept endings are not those"),
        ([*KEPT[:2], ended(sequence=3), replace(KEPT[2], sequence=4)], "the kept endings are not those"),
        ([KEPT[0], ended(replace(OUTCOME, output="other")), KEPT[2]], "the kept endings are not those"),
    ],
)
def test_kept_events_that_are_not_the_whole_story_are_complained_of(kept: list[RunEvent], complaint: str) -> None:
    (found,) = journal_complaints(history(kept=kept))
    assert found.startswith(complaint)


@pytest.mark.parametrize("kind", ["records", "heard"])
@pytest.mark.parametrize(
    ("seen", "executions", "complaint"),
    [
        (Sighting(2.1, "a", "nobody"), (FIRST,), "no execution of it gave that"),
        (Sighting(2.1, "b", "first"), (FIRST,), "no execution of it gave that"),
        (Sighting(1.9, "a", "first"), (FIRST,), "first on node-1 began 1.000, ended 2.000 and was"),
        (Sighting(0.9, "a", "killed"), (KILLED, FIRST), "killed on node-1 began 0.500, was killed 0.800 and was"),
        (Sighting(0.9, "a", "early"), (replace(KILLED, name="early", has_ended=True), FIRST), "and first on node-1"),
    ],
)
def test_a_success_that_was_told_before_it_happened_or_is_repeated_is_complained_of(
    kind: str, seen: Sighting, executions: tuple[Execution, ...], complaint: str
) -> None:
    sightings: dict[str, Any] = {kind: [seen]}
    assert any(complaint in each for each in journal_complaints(history(*executions, **sightings)))


def test_results_that_are_not_those_that_were_told_are_complained_of() -> None:
    told = "the caller was not given the outcomes that it was told, in their order"
    assert journal_complaints(history(given=[None])) == [told]
    assert journal_complaints(history(given=[])) == [told]
    assert journal_complaints(history(asked=[Asked("", ""), Asked("a", "first")])) == []
    assert journal_complaints(history(asked=[Asked("a", "killed")])) == ["a stage was asked after a with 'killed'"]


@pytest.mark.parametrize(
    ("spent", "complaint"),
    [
        (101, "101 tokens were spent of 100"),
        (39, "39 tokens were spent, and the outcomes tell of 40"),
        (40, None),
        (100, None),
    ],
)
def test_a_budget_that_is_not_kept_is_complained_of(spent: int, complaint: str | None) -> None:
    found = journal_complaints(history(budget=Budget(limit=100, spent=spent)))
    assert found[:1] == ([complaint] if complaint else [])


def test_what_executions_have_spent_is_charged_but_for_the_last_call_of_one_that_was_killed() -> None:
    twice = replace(OUTCOME, attempts=2)
    dear = replace(KILLED, spent=60)
    assert journal_complaints(history(dear, FIRST, outcome=twice, budget=Budget(limit=100, spent=80))) == []
    (complaint,) = journal_complaints(history(dear, FIRST, outcome=twice, budget=Budget(limit=100, spent=79)))
    assert complaint == "79 tokens were spent, and executions have spent 80"


@pytest.mark.parametrize(("spent", "is_well"), [(41, True), (40, False)])
def test_a_step_is_refused_only_when_there_is_not_enough_left_for_it(spent: int, *, is_well: bool) -> None:
    alone = history(
        outcome=REFUSED,
        budget=Budget(limit=100, spent=spent),
        needs={"a": 60},
        heard=[],
        records=[],
        runs=[RUN],
    )
    alone = replace(alone, steps=replace(alone.steps, executions=(), outcomes=[replace(REFUSED, usage=Usage())]))
    found = [each for each in journal_complaints(alone) if each.startswith("a: failed")]
    assert (not found) is is_well


LOSS = Span("node-1", 0.7, 5.0)


@pytest.mark.parametrize(
    ("before", "takeovers", "losses", "is_well"),
    [
        pytest.param(KILLED, (0.9,), (), True, id="killed, and then taken over"),
        pytest.param(KILLED, (), (), False, id="never taken over"),
        pytest.param(KILLED, (0.4,), (), False, id="taken over before it began"),
        pytest.param(KILLED, (1.1,), (), False, id="taken over when the next one ran"),
        pytest.param(replace(KILLED, has_ended=True), (0.9,), (), False, id="ended on a node that was well"),
        pytest.param(replace(KILLED, has_ended=True), (0.9,), (LOSS,), True, id="ended on a node that was lost"),
        pytest.param(
            replace(KILLED, has_ended=True), (0.9,), (replace(LOSS, subject="node-2"),), False, id="another was lost"
        ),
        pytest.param(
            replace(KILLED, has_ended=True), (0.9,), (replace(LOSS, began=1.2),), False, id="it was lost later"
        ),
    ],
)
def test_only_what_was_lost_with_its_holder_may_go_uncounted(
    before: Execution, takeovers: tuple[float, ...], losses: tuple[Span, ...], *, is_well: bool
) -> None:
    found = journal_complaints(history(before, FIRST, takeovers=takeovers, losses=losses))
    assert (not found) is is_well


@pytest.mark.parametrize(("began", "is_well"), [(0.5, True), (0.8 + LAST_MOMENTS, True), (0.9 + LAST_MOMENTS, False)])
def test_what_ended_as_its_lease_did_may_go_uncounted(began: float, *, is_well: bool) -> None:
    before = replace(KILLED, has_ended=True)
    found = journal_complaints(history(before, FIRST, takeovers=(0.9,), expiries=(Span("left", began, 9.0),)))
    assert (not found) is is_well


def test_what_gave_the_outcome_never_goes_uncounted() -> None:
    twice = history(KILLED, FIRST, takeovers=(0.9, 1.5), losses=(LOSS,))
    assert journal_complaints(twice) == []
    thrice = history(replace(KILLED, name="second", alive=(0.85, 0.88)), KILLED, FIRST, takeovers=(1.5,))
    assert any("ran 3 times in 1 attempts, 0 handed back, 0 forgotten" in each for each in journal_complaints(thrice))
