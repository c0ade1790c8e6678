"""Runs that nobody but their caller knows of: they end with its stream (C11, C12)."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import Any

import structlog

from coordinator.combinators.runner import StepKey, StepRunner, runner_of
from coordinator.pace import CALLER_BEHIND
from coordinator.runs.history import History
from coordinator.runs.quota import Shortfall
from coordinator.runs.told import Told, told, weight_of
from coordinator.runs.traced import traced
from coordinator.runs.work import Counts, Work
from coordinator.scope import Scope
from coordinator.waiting import LOOK_SECONDS, Standstill, WaitsOn
from fanfold.background import background
from fanfold.feed import Feed
from fanfold.model.pipeline import StageRequest
from fanfold.model.run import (
    BudgetExhausted,
    EventDetail,
    LogLine,
    PhaseStarted,
    Run,
    RunEnded,
    RunEvent,
    RunStarted,
    RunState,
    RunStepEvent,
    StageFailed,
    StepCounts,
    WaitingChanged,
)
from fanfold.model.step import AgentStepSpec, StepEnded, StepEvent, StepOutcome, StepProgressed, StepStarted
from fanfold.ports import AgentExecutor, OnStepEvent

RunFeed = Feed[Told] | Feed[Told | StageRequest]
"""A run's events on their way to its caller; a pipeline's has stage requests among them."""

_log = structlog.get_logger(__name__)


class AttachedRun(ABC):
    """A run that ends with its caller's stream: numbered events, and how many steps are where."""

    def __init__(self, scope: Scope, detail: EventDetail, work: Counts, feed: RunFeed, name: str = "") -> None:
        self._scope = scope
        self._detail = detail
        self._work = work
        self._feed = feed
        self._sequence = 0
        self._running = self._succeeded = self._failed = 0
        self._shortfall = Shortfall()
        self._waiting_on = ""
        self._created_at = datetime.now(UTC)
        self._task: asyncio.Task[None] | None = None
        self._cancel_reason: str | None = None
        self._gone = asyncio.Event()
        self._ended: Run | None = None
        self._budget = scope.budget
        if self._budget is not None:
            self._budget.divide(work.most_steps)
            self._budget.on_exhausted.append(self._tell_exhausted)
        scope.pace.follow(feed)
        scope.trace.begin(scope.run_id, scope.owner, work.kind, name=name)

    @property
    def run_id(self) -> str:
        """Its id."""
        return self._scope.run_id

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self._scope.owner

    @property
    def scope(self) -> Scope:
        """For whom its steps are run."""
        return self._scope

    @property
    def standstill(self) -> Standstill | None:
        """What it waits on while nothing of it moves, and since when (C42)."""
        return self._scope.waiting.standstill

    def view(self) -> Run:
        """The run as it now is."""
        return self._ended or self._run(RunState.RUNNING, None)

    async def until_gone(self) -> None:
        """Wait until nothing of it runs."""
        await self._gone.wait()

    def leave(self) -> None:
        """Its caller's block is left, and nothing of it runs, whether it had begun or not."""
        if self._ended is None:
            self._ended = self._run(RunState.CANCELLED, datetime.now(UTC))
        self._scope.trace.end(self._ended.state, self._ended.steps, self._ended.reason)
        self._gone.set()

    def cancel(self, reason: str) -> None:
        """Have it cancelled, and its caller told so; the first reason is kept."""
        if self._cancel_reason is None:
            self._cancel_reason = reason
            if self._task is not None:
                self._task.cancel()

    @abstractmethod
    async def keep(self, executor: AgentExecutor) -> None:
        """Do what there is to do, and tell the run's life from its start to its end."""

    async def _tell_waiting(self) -> None:
        """Tell what the run waits on while nothing moves, as long as that is news (C42)."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            waiting_on = self._scope.waiting.look()
            if waiting_on != self._waiting_on and self._ended is None:
                self._waiting_on = waiting_on
                self._push(WaitingChanged, waiting_on=waiting_on)

    def _tell_exhausted(self) -> None:
        """The first step was refused for want of tokens (C13)."""
        assert self._budget is not None
        self._push(BudgetExhausted, budget=self._budget.told())

    def _push(self, kind: type[RunEvent], **fields: Any) -> None:
        self._tell(kind(sequence=self._number(), time=datetime.now(UTC), **fields))

    def _tell(self, event: RunEvent) -> None:
        one = told(event)
        self._feed.push(one, weight_of(one))

    def _tell_step(self, event: StepEvent, index: int, stage: int = 0, *, label: str = "", phase: str = "") -> None:
        if isinstance(event, StepStarted):
            self._running += 1
        elif isinstance(event, StepEnded):
            self._running -= 1
            if event.outcome.success:
                self._succeeded += 1
            else:
                self._failed += 1
                self._shortfall.note(event.outcome)
        if is_wanted(event, self._detail, self._feed):
            sequence = 0 if isinstance(event, StepProgressed) else self._number()
            spent = self._budget.spent if self._budget and isinstance(event, StepEnded) else None
            self._tell(
                RunStepEvent(
                    sequence=sequence,
                    time=event.time,
                    index=index,
                    stage=stage,
                    event=event,
                    budget_spent=spent,
                    label=label,
                    phase=phase,
                )
            )
        elif isinstance(event, StepStarted):
            self._number()

    def _number(self) -> int:
        self._sequence += 1
        return self._sequence

    def _run(self, state: RunState, ended_at: datetime | None, error: str = "") -> Run:
        total, running = self._work.total, self._running
        return Run(
            run_id=self._scope.run_id,
            kind=self._work.kind,
            state=state,
            owner=self._scope.owner,
            attached=True,
            steps=StepCounts(total=total, running=running, succeeded=self._succeeded, failed=self._failed),
            budget=self._budget.told() if self._budget else None,
            waiting_on="" if ended_at else self._waiting_on,
            created_at=self._created_at,
            ended_at=ended_at,
            reason=self._cancel_reason or "" if state is RunState.CANCELLED else error,
        )


class AttachedWork(AttachedRun):
    """The run of a `Work`."""

    def __init__(self, scope: Scope, detail: EventDetail, work: Work, feed: RunFeed) -> None:
        super().__init__(scope, detail, work, feed)
        self._carry_out = work.carry_out

    async def keep(self, executor: AgentExecutor) -> None:
        """Do the work and tell the run's life from its start to its end."""
        self._push(RunStarted, run_id=self._scope.run_id, total_steps=self._work.total, trace=self._scope.trace.context)
        # A request stream that broke looks like one that ended; only an answer that arrives tells them apart.
        await self._feed.first_delivered()
        log = _log.bind(run_id=self._scope.run_id, owner=self._scope.owner)
        log.info("run started", kind=self._work.kind, steps=self._work.total)
        state = RunState.CANCELLED
        try:
            async with background(self._tell_waiting()):
                state = await self._until_ended(executor)
        finally:
            log.info(f"run {state}", succeeded=self._succeeded, failed=self._failed)
            self._running = 0  # those that were cancelled do not tell their end
            error = self._shortfall.reason if state is RunState.FAILED else ""
            self._ended = self._run(state, datetime.now(UTC), error)
            self._gone.set()
        self._push(RunEnded, run=self._ended, error=error, out_of_quota=bool(error))

    async def _until_ended(self, executor: AgentExecutor) -> RunState:
        paced = Paced(traced(runner_of(executor), self._scope), self._feed, self._scope)
        async with asyncio.TaskGroup() as tasks:
            self._task = tasks.create_task(self._carry_out(paced, History(), self, ()))
            if self._cancel_reason is not None:
                self._task.cancel()
        if self._task.cancelled():
            return RunState.CANCELLED
        return RunState.FAILED if self._shortfall.reason else RunState.COMPLETED

    def tell_step(self, position: int, stage: int, event: StepEvent, *, label: str = "", phase: str = "") -> None:
        """Tell what happened to a step, as far as the caller wants to hear of it."""
        self._tell_step(event, position, stage, label=label, phase=phase)

    def tell_phase(self, title: str) -> None:
        """Tell that a script entered a phase."""
        self._push(PhaseStarted, title=title)

    def tell_log(self, message: str) -> None:
        """Tell a line of a script."""
        self._push(LogLine, message=message)

    def tell_stage_failed(self, position: int, stage: int, error: str) -> None:
        """Tell that a pipeline's stage failed (C15)."""
        self._push(StageFailed, index=position, stage=stage, error=error)

    async def until_told(self) -> None:
        """Nothing of it is kept anywhere."""


def is_wanted(event: StepEvent, detail: EventDetail, feed: RunFeed | Feed[StepEvent]) -> bool:
    """Whether a caller who asked for `detail` is told the event."""
    if isinstance(event, StepEnded):
        return True
    if isinstance(event, StepProgressed):
        return detail is EventDetail.PROGRESS and feed.has_room()
    return detail is not EventDetail.OUTCOMES


class Paced:
    """A runner that begins no further step while the run's caller has a lot to read already (F15)."""

    def __init__(self, runner: StepRunner, feed: RunFeed, scope: Scope) -> None:
        self._runner = runner
        self._feed = feed
        self._waiting = scope.waiting

    def concurrency_hint(self) -> int:
        """The runner's."""
        return self._runner.concurrency_hint()

    async def run_step(self, key: StepKey, spec: AgentStepSpec, on_event: OnStepEvent | None) -> StepOutcome:
        """Run one step, once the caller keeps up."""
        if self._feed.is_heavy():
            with self._waiting.step(), self._waiting.on(WaitsOn.CALLER, CALLER_BEHIND):
                await self._feed.room()
        return await self._runner.run_step(key, spec, on_event)
