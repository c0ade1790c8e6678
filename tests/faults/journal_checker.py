"""Judges what happened in a journaled run under faults, beside what every run is held to (C13, C16 to C19)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fanfold.model.run import Run, RunEnded, RunEvent, RunStarted, RunState, RunStepEvent
from fanfold.model.step import StepEnded, StepOutcome
from faults.checker import Execution, History, complaints
from faults.load import CALL_TOKENS


@dataclass(frozen=True, slots=True)
class Sighting:
    """A success that was told at a time, by the journal's records or to the caller: what the step's output was."""

    time: float
    task_id: str
    output: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to a stage: the step before it, if any, and the output of that as it was told."""

    before: str
    previous: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalHistory:
    """All that is known of a journaled run that has ended."""

    steps: History
    given: Sequence[StepOutcome | None]
    """What its caller was given."""
    expected: Sequence[StepOutcome]
    """What its caller is to be given, by the events that it was told."""
    asked: Sequence[Asked]
    run_id: str
    heard: Sequence[Sighting]
    """Successes as the caller was told them."""
    records: Sequence[Sighting]
    """Successes as they were seen in the workflow's records."""
    runs: Sequence[Run]
    """The runs of the workflow that are kept."""
    kept: Sequence[RunEvent]
    """The run's events, as they are kept."""


def journal_complaints(history: JournalHistory) -> list[str]:
    """What is wrong with a journaled run; nothing if all is well."""
    return [
        *complaints(history.steps),
        *_complaints_about_acceptance(history),
        *_complaints_about_kept_events(history),
        *_complaints_about_records(history),
        *_complaints_about_results(history),
        *_complaints_about_budget(history.steps),
    ]


def _complaints_about_acceptance(history: JournalHistory) -> Iterator[str]:
    """One request is one run, which ends, whoever asks for it how often (C18, C19)."""
    found = [(run.run_id, run.state) for run in history.runs]
    if found != [(history.run_id, RunState.COMPLETED)]:
        yield f"{history.run_id} was accepted, and there are {found}"


def _complaints_about_kept_events(history: JournalHistory) -> Iterator[str]:
    kept = history.kept
    numbers = [event.sequence for event in kept]
    if numbers != list(range(1, len(kept) + 1)):
        yield f"events are kept with the numbers {numbers}"
    if not kept or not isinstance(kept[0], RunStarted) or not isinstance(kept[-1], RunEnded):
        yield "the kept events do not begin with the run's start and end with its end"
    ended = [
        event.event.outcome for event in kept if isinstance(event, RunStepEvent) and isinstance(event.event, StepEnded)
    ]
    told = {outcome.task_id: outcome for outcome in history.steps.outcomes}
    if len(ended) != len(told) or any(told.get(outcome.task_id) != outcome for outcome in ended):
        yield "the kept endings are not those that the caller was told, each once"


def _complaints_about_records(history: JournalHistory) -> Iterator[str]:
    """A success happened before anybody was told of it, and its step is never begun again (C16)."""
    lives = {execution.name: execution for execution in history.steps.executions}
    for kind, sightings in (("recorded", history.records), ("told", history.heard)):
        for seen in sightings:
            source = lives.get(seen.output)
            if source is None or source.task_id != seen.task_id:
                yield f"{seen.task_id}: {seen.output!r} was {kind}, and no execution of it gave that"
            elif not source.has_ended or source.last_alive > seen.time:
                yield f"{seen.task_id}: {source} and was {kind} at {seen.time:.3f}"
            else:
                yield from _repetitions(source, kind, seen, history.steps.executions)


def _repetitions(source: Execution, kind: str, seen: Sighting, executions: Sequence[Execution]) -> Iterator[str]:
    for other in executions:
        if other.task_id == seen.task_id and other.began > seen.time:
            yield f"{seen.task_id}: {source.name} was {kind} at {seen.time:.3f}, and {other} after that"


def _complaints_about_results(history: JournalHistory) -> Iterator[str]:
    if list(history.given) != list(history.expected):
        yield "the caller was not given the outcomes that it was told, in their order"
    outputs = {outcome.task_id: outcome.output for outcome in history.steps.outcomes}
    for asked in history.asked:
        if asked.previous != outputs.get(asked.before, ""):
            yield f"a stage was asked after {asked.before} with {asked.previous!r}"


def _complaints_about_budget(steps: History) -> Iterator[str]:
    """What was spent is within the limit, and no less than what executions have told (C13)."""
    if steps.budget is None:
        return
    spent, limit = steps.budget.spent, steps.budget.limit
    if spent > limit:
        yield f"{spent} tokens were spent of {limit}"
    if spent < (told := sum(outcome.usage.tokens for outcome in steps.outcomes)):
        yield f"{spent} tokens were spent, and the outcomes tell of {told}"
    # One that was killed may not have told of its last call.
    least = sum(one.spent - (0 if one.has_ended or not one.spent else CALL_TOKENS) for one in steps.executions)
    if spent < least:
        yield f"{spent} tokens were spent, and executions have spent {least}"
