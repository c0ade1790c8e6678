"""What a journaled run tells of itself: numbered events, and how many steps are where."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from coordinator.journal.journal import Append, Entry, KeptRun
from coordinator.runs.history import History
from coordinator.runs.log import RunLog
from coordinator.runs.recall import Recall
from coordinator.runs.work import Work
from coordinator.scope import Scope
from fanfold.model.run import (
    BudgetExhausted,
    LogLine,
    PhaseStarted,
    Run,
    RunEnded,
    RunEvent,
    RunStarted,
    RunState,
    RunStepEvent,
    StageFailed,
    StepChanged,
    StepCounts,
    WaitingChanged,
)
from fanfold.model.step import StepEnded, StepEvent, StepOutcome, StepProgressed, StepStarted
from fanfold.wire.run import event_to_bytes


class Account:
    """Counts a run's steps and puts its events into its log, from where a former holder has left off."""

    def __init__(self, kept: KeptRun, work: Work, history: History, scope: Scope) -> None:
        budget = scope.budget
        self._kept = kept
        self._budget = budget
        self._trace = scope.trace
        self.job_id = kept.run.job_id
        if budget is not None:
            budget.divide(work.most_steps)
            budget.on_exhausted.append(self._tell_exhausted)
            budget.on_spent = self._note_spending
        self._work = work
        self._is_started = history.is_started
        self._begun = history.begun
        self._succeeded, self._failed = history.succeeded, history.failed
        self._shortfall = history.shortfall
        self._running = 0
        self.waiting_on = ""
        self.log: RunLog
        self.recall: Recall

    @property
    def all_succeeded(self) -> bool:
        """Whether no step has failed."""
        return not self._failed

    @property
    def shortfall(self) -> str:
        """Why the run has not completed though all its steps have ended, if so; a script says that itself (C24)."""
        return self._shortfall.reason if self._work.script is None else ""

    def tell(self, kind: type[RunEvent], **fields: Any) -> None:
        """Tell an event of the run itself."""
        entry = self._entry(kind, **fields)
        self.log.tell(entry)

    @property
    def is_pending(self) -> bool:
        """Whether the run's start was not told yet."""
        return not self._is_started

    def tell_start(self) -> None:
        """Tell that the run was accepted, unless it was told before."""
        if not self._is_started:
            self._is_started = True
            run_id, work, trace = self._kept.run.run_id, self._work, self._trace.context
            self.tell(RunStarted, run_id=run_id, total_steps=work.total, script=work.script, trace=trace)

    def tell_waiting(self, waiting_on: str) -> None:
        """Tell what the run waits on, if that is news (C42)."""
        if waiting_on != self.waiting_on:
            self.waiting_on = waiting_on
            self.tell(WaitingChanged, waiting_on=waiting_on)

    def tell_changed(self, key: str, reason: str) -> None:
        """Tell that a recorded step runs again (C16)."""
        self.tell(StepChanged, key=key, reason=reason)

    def tell_phase(self, title: str) -> None:
        """Tell that a script entered a phase."""
        self.tell(PhaseStarted, title=title)

    def tell_log(self, message: str) -> None:
        """Tell a line of a script."""
        self.tell(LogLine, message=message)

    def tell_step(self, position: int, stage: int, event: StepEvent, *, label: str = "", phase: str = "") -> None:
        """Tell what happened to a step; its start only if no former holder has told it."""
        if isinstance(event, StepStarted):
            self._running += 1
            if (position, stage) in self._begun:
                return
        number = 0 if isinstance(event, StepProgressed) else self.log.next_number()
        name = self._work.name_of(position, stage, event.task_id)
        recalled = self.recall.is_recalled(name)
        told = RunStepEvent(
            sequence=number,
            time=datetime.now(UTC) if recalled else event.time,
            index=position,
            stage=stage,
            event=event,
            recalled=recalled,
            budget_spent=self._budget.spent if self._budget and isinstance(event, StepEnded) else None,
            label=label,
            phase=phase,
        )
        entry = Entry(number, event_to_bytes(told), isinstance(event, StepEnded))
        if isinstance(event, StepEnded):
            self._count(event.outcome)
            self.log.tell(entry, settles=name, record=self.recall.record_of(name, event.outcome, entry.data))
        else:
            self.log.tell(entry)

    def _tell_exhausted(self) -> None:
        """The first step was refused for want of tokens (C13)."""
        assert self._budget is not None
        self.tell(BudgetExhausted, budget=self._budget.told())

    def _note_spending(self) -> None:
        """What a failed attempt has cost is to survive this coordinator, though there is no event to tell of it."""
        self.log.note()

    def tell_stage_failed(self, position: int, stage: int, error: str) -> None:
        """Tell that a pipeline's stage failed (C15)."""
        self.tell(StageFailed, index=position, stage=stage, error=error)

    async def until_told(self) -> None:
        """Wait until what was told so far is durable."""
        await self.log.flush()

    def forfeit(self) -> None:
        """Nothing more is told of the steps that are being stopped: all they might cost is charged (C13)."""
        if self._budget is not None:
            self._budget.forfeit()

    def note_stop(self) -> None:
        """No step runs any more; those that were cancelled do not tell their end."""
        self._running = 0

    async def tell_end(self, state: RunState, reason: str) -> None:
        """Tell the run's end, and wait until it is durable. With every step a success, the records go (C16)."""
        now = datetime.now(UTC)
        error = reason if state is RunState.FAILED else ""
        result = self._work.result_in(state, reason)
        entry = self._entry(
            RunEnded,
            run=self.view(state, now, reason),
            error=error,
            script_result=result,
            out_of_quota=bool(error) and error == self.shortfall,
        )
        done = state is RunState.COMPLETED and self.all_succeeded
        await self.log.finish(entry, self.standing(state, reason, forget_records=done))

    def standing(self, state: RunState = RunState.RUNNING, reason: str = "", *, forget_records: bool = False) -> Append:
        """How the run stands, as it is written beside its events."""
        return Append(
            run_id=self._kept.run.run_id,
            epoch=self._kept.epoch,
            steps=self.counts(),
            budget=self._budget.told() if self._budget else None,
            waiting_on=self.waiting_on if state is RunState.RUNNING else "",
            state=state,
            reason=reason,
            forget_records=forget_records,
        )

    def view(self, state: RunState = RunState.RUNNING, ended_at: datetime | None = None, reason: str = "") -> Run:
        """The run as it now is."""
        kept = self._kept.run
        return Run(
            run_id=kept.run_id,
            kind=kept.kind,
            state=state,
            workflow_id=kept.workflow_id,
            owner=kept.owner,
            attached=kept.attached,
            job_id=self.job_id,
            steps=self.counts(),
            budget=self._budget.told() if self._budget else None,
            waiting_on="" if ended_at else self.waiting_on,
            created_at=kept.created_at,
            ended_at=ended_at,
            coordinator=self._kept.holder.name,
            reason=reason,
        )

    def _entry(self, kind: type[RunEvent], **fields: Any) -> Entry:
        number = self.log.next_number()
        return Entry(number, event_to_bytes(kind(sequence=number, time=datetime.now(UTC), **fields)))

    def _count(self, outcome: StepOutcome) -> None:
        self._running -= 1
        if outcome.success:
            self._succeeded += 1
        else:
            self._failed += 1
            self._shortfall.note(outcome)

    def counts(self) -> StepCounts:
        """How many steps are where."""
        return StepCounts(total=self._work.total, running=self._running, succeeded=self._succeeded, failed=self._failed)
