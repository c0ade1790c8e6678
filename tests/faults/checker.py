"""Judges what happened in a run under faults: from the steps' outcomes and events, and from what executions wrote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import inf

from fanfold.model.run import Budget
from fanfold.model.step import (
    AttemptStarted,
    FailureCode,
    StepEnded,
    StepEvent,
    StepOutcome,
    StepProgressed,
    StepStarted,
)
from faults.subjects import Span

AFTER_WAKING = 0.5
"""Seconds that a frozen node's executions may go on after it wakes up, although their steps run elsewhere by then.

Nothing can prevent it: a process that wakes up runs before anybody can look at the clock and kill it (C19). While the
node is frozen, and later than this, an execution beside another of its step is a fault.
"""

LAST_MOMENTS = 0.5
"""Seconds around the end of a drain, or of leases, in which what is stopped then was last alive.

An agent that has said that it ended may be stopped, too, before its process has exited; its step then runs again.
"""


@dataclass(frozen=True, slots=True)
class Execution:
    """One life of a step, as it wrote it down itself. `alive` are the times at which it was, in seconds."""

    name: str
    task_id: str
    node: str
    pid: int
    alive: tuple[float, ...]
    has_ended: bool
    """Whether it got to its end; if not, it was killed."""
    spent: int = 0
    """Model tokens."""

    @property
    def began(self) -> float:
        return self.alive[0]

    @property
    def last_alive(self) -> float:
        return self.alive[-1]

    def __str__(self) -> str:
        end = "ended" if self.has_ended else "was killed"
        return f"{self.name} on {self.node} began {self.began:.3f}, {end} {self.last_alive:.3f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All that is known of a run. `task_ids` are the steps that were asked for, in that order."""

    task_ids: Sequence[str]
    outcomes: Sequence[StepOutcome]
    events: Sequence[StepEvent]
    executions: Sequence[Execution]
    freezes: Sequence[Span] = ()
    """From when processes were stopped until just before they were woken."""
    drains: Sequence[Span] = ()
    """From the end of a draining node's grace until the node was gone."""
    losses: Sequence[Span] = ()
    """When something befell a node or its wire."""
    expiries: Sequence[Span] = ()
    """When the leases of a coordinator ended that something befell."""
    takeovers: Sequence[float] = ()
    """When another coordinator took the run over."""
    budget: Budget | None = None
    """What the run was allowed to spend and has spent."""
    needs: Mapping[str, int] = field(default_factory=dict)
    """What is set aside of the budget for each step that spends."""


def executions_of(lines: Iterable[str]) -> list[Execution]:
    """Read what executions wrote, in the order in which they began."""
    alive: defaultdict[str, list[float]] = defaultdict(list)
    about: dict[str, tuple[str, str, int]] = {}
    spent: dict[str, int] = {}
    ended: set[str] = set()
    for line in lines:
        what, name, time, task_id, node, pid, tokens = line.split()
        about[name] = task_id, node, int(pid)
        spent[name] = int(tokens)
        alive[name].append(float(time))
        if what == "end":
            ended.add(name)
    found = [Execution(name, *about[name], tuple(sorted(alive[name])), name in ended, spent[name]) for name in about]
    return sorted(found, key=lambda execution: execution.began)


def complaints(history: History) -> list[str]:
    """What is wrong with a run; nothing if all is well."""
    found = [*_complaints_about_order(history)]
    events: defaultdict[str, list[StepEvent]] = defaultdict(list)
    for event in history.events:
        events[event.task_id].append(event)
    executions: defaultdict[str, list[Execution]] = defaultdict(list)
    for execution in history.executions:
        executions[execution.task_id].append(execution)
    for task_id in sorted((events.keys() | executions.keys()) - set(history.task_ids)):
        found.append(f"{task_id}: nobody asked for it")
    outcomes = {outcome.task_id: outcome for outcome in history.outcomes}
    for task_id in history.task_ids:
        if (outcome := outcomes.get(task_id)) is None:
            continue
        of_step = [
            *_complaints_about_events(events[task_id], outcome, forgotten_of(executions[task_id], outcome, history)),
            *_complaints_about_outcome(executions[task_id], outcome, history),
            *_complaints_about_number(executions[task_id], outcome, history),
            *_complaints_about_overlap(executions[task_id], history.freezes),
        ]
        found += [f"{task_id}: {complaint}" for complaint in of_step]
    return found


def _complaints_about_order(history: History) -> Iterator[str]:
    given = [outcome.task_id for outcome in history.outcomes]
    if given != list(history.task_ids):
        yield f"outcomes are not those of the steps, in their order: {given}"


def _complaints_about_events(
    events: Sequence[StepEvent], outcome: StepOutcome, forgotten: Sequence[Execution]
) -> Iterator[str]:
    kinds = [type(event) for event in events]
    if kinds.count(StepStarted) != 1 or kinds[:1] != [StepStarted]:
        yield f"it must start once, and first: {_names(kinds)}"
    if kinds.count(StepEnded) != 1 or kinds[-1:] != [StepEnded]:
        yield f"it must end once, and last: {_names(kinds)}"
    if any(isinstance(event, StepEnded) and event.outcome != outcome for event in events):
        yield "the outcome that was told is not the one that was given"
    progress = [event.progress for event in events if isinstance(event, StepProgressed)]
    attempts = [each.attempt for each in progress if isinstance(each, AttemptStarted)]
    # An attempt that is lost with its node before that told of it is not heard of; a drained one may be told again.
    # Where some were forgotten, they are counted anew.
    if not forgotten and (
        attempts != sorted(attempts) or any(not 2 <= attempt <= outcome.attempts for attempt in attempts)
    ):
        yield f"attempts {attempts} were told of {outcome.attempts}"


def _names(kinds: Iterable[type[StepEvent]]) -> str:
    return ", ".join(kind.__name__ for kind in kinds) or "nothing"


def _complaints_about_outcome(executions: Sequence[Execution], outcome: StepOutcome, history: History) -> Iterator[str]:
    """Every step that is paid for can succeed; its outcome is that of its last execution, which ended."""
    if not outcome.success:
        if not _was_refused(outcome, history):
            yield f"failed after {outcome.attempts} attempts: {outcome.failure}"
        return
    by_name = {execution.name: execution for execution in executions}
    source = by_name.get(outcome.output)
    if source is None:
        yield f"no execution gave its outcome, {outcome.output!r}"
        return
    if not source.has_ended:
        yield f"its outcome is of {source.name}, which has not ended"
    if source.node != outcome.node:
        yield f"its outcome is of {source.node} and says {outcome.node}"
    if source is not executions[-1]:
        yield f"{executions[-1].name} began after {source.name}, which gave the outcome"


def _was_refused(outcome: StepOutcome, history: History) -> bool:
    """Whether there was not enough left of the budget for another attempt; what is spent only grows (C13)."""
    if history.budget is None or outcome.failure is None:
        return False
    is_short = history.budget.spent + history.needs.get(outcome.task_id, 0) > history.budget.limit
    return is_short and outcome.failure.code is FailureCode.BUDGET_EXHAUSTED


def _complaints_about_number(executions: Sequence[Execution], outcome: StepOutcome, history: History) -> Iterator[str]:
    handed_back = sum(_was_handed_back(execution, history.drains) for execution in executions)
    forgotten = forgotten_of(executions, outcome, history)
    if len(executions) > outcome.attempts + handed_back + len(forgotten):
        lives = ", ".join(map(str, executions))
        yield (
            f"ran {len(executions)} times in {outcome.attempts} attempts, {handed_back} handed back, "
            f"{len(forgotten)} forgotten: {lives}"
        )


def forgotten_of(executions: Sequence[Execution], outcome: StepOutcome, history: History) -> Sequence[Execution]:
    """The executions of a step that nobody may have counted, because node and coordinator were lost together.

    The last of them was there when the run was taken over, and left nothing to its successor. One that had ended is
    among them only if its node, which keeps outcomes until they are recorded, was lost as well (C19), or stopped it in
    its last moments.
    """
    ends = [execution.began for execution in executions[1:]]
    if not outcome.success:
        ends.append(inf)
    for number, (last, end) in reversed([*enumerate(zip(executions, ends, strict=False), start=1)]):
        is_taken_over = any(last.began < time < end for time in history.takeovers)
        if is_taken_over and (not last.has_ended or _is_outcome_lost(last, end, history)):
            return executions[:number]
    return ()


def _is_outcome_lost(execution: Execution, before: float, history: History) -> bool:
    was_node_lost = any(
        loss.subject == execution.node and loss.began < before and loss.ended > execution.last_alive
        for loss in history.losses
    )
    return was_node_lost or any(_was_stopped_in(span, execution) for span in history.expiries)


def _was_handed_back(execution: Execution, drains: Sequence[Span]) -> bool:
    """Whether a draining node may have stopped it, which costs no attempt (C43)."""
    return any(drain.subject == execution.node and _was_stopped_in(drain, execution) for drain in drains)


def _was_stopped_in(span: Span, execution: Execution) -> bool:
    return span.began - LAST_MOMENTS <= execution.last_alive <= span.ended + LAST_MOMENTS


def _complaints_about_overlap(executions: Sequence[Execution], freezes: Sequence[Span]) -> Iterator[str]:
    for first, second in combinations(executions, 2):
        beside = [time for time in first.alive if time > second.began and not _just_woke(first.node, time, freezes)]
        if beside:
            yield (
                f"{first.name} on {first.node} was alive {beside[-1] - second.began:.3f} s after {second.name} "
                f"had begun on {second.node}, at {second.began:.3f}"
            )


def _just_woke(node: str, time: float, freezes: Sequence[Span]) -> bool:
    return any(freeze.subject == node and freeze.ended <= time <= freeze.ended + AFTER_WAKING for freeze in freezes)
