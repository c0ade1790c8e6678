"""What a taken-over run had come to, read from its kept events (C19)."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.journal.journal import Journal, KeptRun, PayloadGone
from coordinator.runs.quota import Shortfall
from coordinator.runs.reader import page_of
from fanfold.model.run import BudgetExhausted, LogLine, PhaseStarted, RunStarted, RunStepEvent, StageFailed
from fanfold.model.step import StepEnded, StepOutcome, StepStarted
from fanfold.model.trace import TraceContext
from fanfold.wire.run import event_from_bytes

Place = tuple[int, int]
"""Position and stage of a step."""


@dataclass(slots=True)
class History:
    """Steps that have begun and not ended, that have ended, and each item's last outcome where a pipeline needs it."""

    is_started: bool = False
    trace: TraceContext | None = None
    """What the run's first holder has traced it as, or its caller, if either has."""
    begun: set[Place] = field(default_factory=set)
    ended: set[Place] = field(default_factory=set)
    last: dict[int, tuple[int, StepOutcome]] = field(default_factory=dict)
    """Stage and outcome of the last step of each item."""
    stopped: set[int] = field(default_factory=set)
    """Items of a pipeline that have ended because a stage failed."""
    succeeded: int = 0
    failed: int = 0
    shortfall: Shortfall = field(default_factory=Shortfall)
    is_budget_exhausted: bool = False
    lines: int = 0
    """Phases and log lines of a script."""
    spent_at: dict[int, int] = field(default_factory=dict)
    """What the run had spent at the end of each item's last step, if it has a budget."""

    def take(self, event: object, *, keep_last: bool) -> None:
        """Take the next event into account."""
        match event:
            case RunStarted(trace=trace):
                self.is_started = True
                self.trace = trace
            case BudgetExhausted():
                self.is_budget_exhausted = True
            case PhaseStarted() | LogLine():
                self.lines += 1
            case StageFailed(index=index):
                self.stopped.add(index)
            case RunStepEvent(index=index, stage=stage, event=StepStarted()):
                self.begun.add((index, stage))
            case RunStepEvent(index=index, stage=stage, event=StepEnded(outcome=outcome), budget_spent=spent):
                self.begun.discard((index, stage))
                self.ended.add((index, stage))
                if outcome.success:
                    self.succeeded += 1
                else:
                    self.failed += 1
                    self.shortfall.note(outcome)
                if keep_last:
                    self.last[index] = (stage, outcome)
                    if spent is not None:
                        self.spent_at[index] = spent


async def history_of(journal: Journal, kept: KeptRun, *, keep_last: bool) -> History:
    """Read a run's history; with `keep_last` also each item's last outcome."""
    history = History()
    following = 1
    while following <= kept.last_sequence:
        page = await page_of(journal, kept.run.run_id, following)
        for entry in page:
            history.take(event_from_bytes(entry.data), keep_last=keep_last)
        following = page[-1].sequence + 1
    return history


async def trace_of(journal: Journal, kept: KeptRun) -> TraceContext | None:
    """What a run was traced as, if it was, and its first event is still kept."""
    try:
        entries = await journal.entries(kept.run.run_id, 1, 1)
    except PayloadGone:
        return None
    event = event_from_bytes(entries[0].data) if entries else None
    return event.trace if isinstance(event, RunStarted) else None
