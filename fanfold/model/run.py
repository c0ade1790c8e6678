"""A run: one orchestration, its state, its events and its result (C12, C28)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TypeVar, overload

from fanfold.model.light import light
from fanfold.model.script import ScriptMeta, ScriptResult
from fanfold.model.step import StepEvent, StepOutcome
from fanfold.model.trace import TraceContext


class RunKind(StrEnum):
    """The kinds of orchestration."""

    PARALLEL = "parallel"
    PIPELINE = "pipeline"
    SCRIPT = "script"


class RunState(StrEnum):
    """The states of a run.

    `FAILED` means that the run itself could not go on, or that there was no quota for some of its steps (C24), and not
    that a step failed for any other cause.
    """

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


class EventDetail(StrEnum):
    """Which of a run's events to send; each level has all of the level before."""

    OUTCOMES = "outcomes"
    LIFECYCLE = "lifecycle"
    PROGRESS = "progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """How many steps of a run are where."""

    total: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A token budget and what became of it (C13)."""

    limit: int
    spent: int = 0
    refused_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One orchestration."""

    run_id: str
    kind: RunKind
    state: RunState
    workflow_id: str = ""
    owner: str = ""
    attached: bool = True
    job_id: str = ""
    steps: StepCounts = StepCounts()
    budget: Budget | None = None
    waiting_on: str = ""
    created_at: datetime | None = None
    ended_at: datetime | None = None
    coordinator: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The run was accepted; always first."""

    sequence: int
    time: datetime
    run_id: str
    total_steps: int
    script: ScriptMeta | None = None
    """What a script says of itself, if it is one."""
    trace: TraceContext | None = None
    """What the run's steps are part of in a distributed trace, if anybody traces it."""


@light
class RunStepEvent:
    """Something happened to a step; `index` is its position in the request, or its item's in a pipeline, from 0.

    `recalled` says that the step was answered from its record, and not run again (C16).
    """

    sequence: int
    time: datetime
    index: int
    event: StepEvent
    stage: int = 0
    recalled: bool = False
    budget_spent: int | None = None
    """What the run has spent by then: at a step's end, and if the run has a budget (C13)."""
    label: str = ""
    phase: str = ""
    """What an agent() call of a script is called, and the phase that it belongs to; `index` is its number then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFailed:
    """A pipeline's stage raised, answered no spec, or did not answer in time; the item's chain ends there (C15)."""

    sequence: int
    time: datetime
    index: int
    stage: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChanged:
    """A recorded step runs again, because what it asks for changed (C16)."""

    sequence: int
    time: datetime
    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetExhausted:
    """The budget has no room for further steps (C13); told once."""

    sequence: int
    time: datetime
    budget: Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStarted:
    """A script entered a phase (C22)."""

    sequence: int
    time: datetime
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A script wrote a line, or lost an item of a combinator (C23, C24)."""

    sequence: int
    time: datetime
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingChanged:
    """What the run waits on changed; empty when something moves again (C42)."""

    sequence: int
    time: datetime
    waiting_on: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The run ended; always last."""

    sequence: int
    time: datetime
    run: Run
    error: str = ""
    script_result: ScriptResult | None = None
    out_of_quota: bool = False
    """Whether a fan-out or pipeline has failed because steps ended QUOTA_EXHAUSTED: all that came of it is told."""


RunEvent = (
    RunStarted
    | RunStepEvent
    | StageFailed
    | StepChanged
    | BudgetExhausted
    | PhaseStarted
    | LogLine
    | WaitingChanged
    | RunEnded
)
"""One event in a run's life. `sequence` counts from 1 without gaps; a step's progress has none, which is 0 (C28)."""

PipelineEvent = RunStepEvent | StageFailed
"""What happens to the items of a pipeline."""


Outcome = TypeVar("Outcome", bound=StepOutcome | None)


class _Outcomes(Sequence[Outcome]):
    """A sequence of outcomes, the budget of the run that they came of, and why it has not completed if so (C24)."""

    __slots__ = ("budget", "error", "outcomes")

    def __init__(self, outcomes: Sequence[Outcome], budget: Budget | None = None, error: str = "") -> None:
        self.outcomes: tuple[Outcome, ...] = tuple(outcomes)
        self.budget = budget
        self.error = error

    @overload
    def __getitem__(self, index: int) -> Outcome: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Outcome]: ...
    def __getitem__(self, index: int | slice) -> Outcome | Sequence[Outcome]:
        return self.outcomes[index]

    def __len__(self) -> int:
        return len(self.outcomes)

    def __iter__(self) -> Iterator[Outcome]:
        return iter(self.outcomes)


class ParallelResult(_Outcomes[StepOutcome]):
    """Outcomes of a fan-out in the order of its steps; `budget` is None when none was given (C12, C13).

    `error` says that the run has not completed, as there was no quota for some of its steps; else it is empty (C24).
    """

    __slots__ = ()

    def __repr__(self) -> str:
        failed = sum(not outcome.success for outcome in self.outcomes)
        return f"ParallelResult({len(self.outcomes)} outcomes, {failed} failed)"


class PipelineResult(_Outcomes[StepOutcome | None]):
    """The last outcome of each item in the order of the items; None for an item that had no step (C14).

    `failures` are the stages that failed, in that order; each ended its item's chain (C15). `budget` is None when none
    was given; `error` as in a fan-out.
    """

    __slots__ = ("failures",)

    def __init__(
        self,
        outcomes: Sequence[StepOutcome | None],
        budget: Budget | None = None,
        failures: Sequence[StageFailed] = (),
        error: str = "",
    ) -> None:
        super().__init__(outcomes, budget, error)
        self.failures: tuple[StageFailed, ...] = tuple(failures)

    def __repr__(self) -> str:
        failed = sum(outcome is not None and not outcome.success for outcome in self.outcomes)
        none = self.outcomes.count(None)
        return f"PipelineResult({len(self.outcomes)} items, {failed} failed, {none} without an outcome)"
