"""A run that outlives its caller's stream and its coordinator: its life while this coordinator holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

import structlog

from coordinator.combinators.runner import StepKey, StepRunner
from coordinator.journal.journal import Fenced, Journal, JournalFailed, KeptRun, PayloadGone
from coordinator.runs.account import Account
from coordinator.runs.history import History
from coordinator.runs.log import RunLog
from coordinator.runs.presence import Presence
from coordinator.runs.reader import LiveReader
from coordinator.runs.recall import Recall
from coordinator.runs.work import Work
from coordinator.scope import Scope
from coordinator.waiting import LOOK_SECONDS
from fanfold.background import background
from fanfold.errors import Aborted, FanfoldError, Unavailable
from fanfold.model.run import EventDetail, Run, RunStarted, RunState
from fanfold.model.step import AgentStepSpec, StepOutcome
from fanfold.ports import OnStepEvent

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenure:
    """What a run is held with.

    `may_write` says whether its lease is certainly not over. `adopted` takes over what former holders have left on
    nodes, and parts at its end with what nobody has asked for. `caller_grace` is how many seconds an attached run waits
    for its caller.
    """

    journal: Journal
    may_write: Callable[[], bool]
    adopted: Callable[[], AbstractAsyncContextManager[None]]
    caller_grace: float


class JournaledRun:
    """A run that is held here: it does the work, keeps its events, and tells them to any number of readers."""

    def __init__(
        self, kept: KeptRun, work: Work, history: History, scope: Scope, runner: StepRunner, tenure: Tenure
    ) -> None:
        self.kept = kept
        self.scope = scope
        self.work = work
        self._history = history
        self._runner = runner
        self._tenure = tenure
        self._cancel_reason = kept.cancel_reason
        self._failure = ""
        self._moving: FanfoldError | None = None
        self._task: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()
        self.presence = Presence(grace=tenure.caller_grace) if kept.run.attached else None
        self._account = Account(kept, work, history, scope.budget)
        self.log = self._account.log = RunLog(
            tenure.journal,
            kept.run.run_id,
            last_sequence=kept.last_sequence,
            standing=self._account.standing,
            on_durable=self._acknowledge,
            may_write=tenure.may_write,
        )

    # What others do with it.

    def reader(self, first: int, detail: EventDetail) -> LiveReader:
        """A reader of its events from number `first` on."""
        return LiveReader(self.log, first, detail)

    def view(self) -> Run:
        """The run as it now is. What its journal keeps from being told is said here (C42)."""
        run = self._account.view()
        return replace(run, waiting_on="the journal, which cannot be written") if self.log.is_failing() else run

    def cancel(self, reason: str) -> None:
        """Have it cancelled; the first reason is kept."""
        if self._cancel_reason is None:
            self._cancel_reason = reason
            if self._task is not None:
                self._task.cancel()

    def move(self, why: FanfoldError) -> None:
        """Stop it here without a trace, so that another coordinator goes on with it: its executions are left alone."""
        if self._moving is None:
            self._moving = why
            self.scope.hold.give_up()
            if self._task is not None:
                self._task.cancel()

    async def until_gone(self) -> None:
        """Wait until it has ended or was moved, and nothing of it is left here."""
        await self._gone.wait()

    # Its life.

    async def live(self) -> None:
        """Carry it out until it has ended, was moved, or cannot go on."""
        log = _log.bind(run_id=self.scope.run_id, owner=self.scope.owner, workflow_id=self.kept.run.workflow_id)
        log.info("run held", epoch=self.kept.epoch, steps=self.work.total)
        try:
            async with background(self._write(), self._tell_waiting(), self._watch_caller()):
                state = await self._until_state()
                if state is None:
                    await self._depart()
                    log.info("run let go")
                else:
                    reason = self._cancel_reason or "" if state is RunState.CANCELLED else self._failure
                    await self._account.tell_end(state, reason)
                    log.info(f"run {state}", reason=reason)
        except* FanfoldError as errors:
            log.warning("run cannot go on here", why=[str(error) for error in errors.exceptions])
        finally:
            self.log.close(Unavailable("the run cannot go on here; ask again", reason="RUN_MOVED", retry_delay=1.0))
            self._gone.set()

    async def _until_state(self) -> RunState | None:
        """Do the work; the state in which it ends, or None if the run is to be moved."""
        async with asyncio.TaskGroup() as tasks:
            self._task = tasks.create_task(self._do())
            if self._cancel_reason is not None or self._moving is not None:
                self._task.cancel()
        if self._moving is not None:
            return None
        if self._task.cancelled():
            return RunState.CANCELLED
        return RunState.FAILED if self._failure else RunState.COMPLETED

    async def _do(self) -> None:
        if not self._history.is_started:
            self._account.tell(RunStarted, run_id=self.scope.run_id, total_steps=self.work.total)
        try:
            records = await self._tenure.journal.records(self.scope.owner, self.kept.run.workflow_id)
        except PayloadGone as error:  # whoever goes on with the run finds the same
            self._failure = error.message
            return
        async with self._tenure.adopted():
            if self.scope.lost_nodes:
                self.scope.unaccounted.update(self._history.begun)
            gate = _Gate(self._runner, self)
            recall = self._account.recall = Recall(gate, records, self._account.tell_changed, self.work.item_hash)
            await self.work.carry_out(recall, self._history, self._account, list(self.scope.adopted))

    async def _write(self) -> None:
        try:
            await self.log.write()
        except FanfoldError:
            self.scope.hold.give_up()  # whoever has it now must not have its executions stopped
            raise

    async def _depart(self) -> None:
        """Leave the run to another coordinator, with all that was told of it."""
        assert self._moving is not None
        if not isinstance(self._moving, Fenced):
            await self.log.flush()
            await self._tenure.journal.let_go(self.scope.run_id, self.kept.epoch)
        self.log.close(self._moving)

    async def _watch_caller(self) -> None:
        if self.presence is not None:
            await self.presence.until_given_up()
            self.cancel(f"its caller did not come back within {self.presence.grace:g} s")

    async def _tell_waiting(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._account.tell_waiting(self.scope.waiting.summary())

    def _acknowledge(self, names: Sequence[str]) -> None:
        """The endings of these steps are durable: their nodes need not keep them any more."""
        if self.scope.receipts is not None:
            for name in names:
                self.scope.receipts.settled(name)


class _Gate:
    """A runner that begins no further step while the run's caller is away, or the journal lags behind (F15)."""

    def __init__(self, runner: StepRunner, run: JournaledRun) -> None:
        self._runner = runner
        self._run = run

    def concurrency_hint(self) -> int:
        return self._runner.concurrency_hint()

    async def run_step(self, key: StepKey, spec: AgentStepSpec, on_event: OnStepEvent | None) -> StepOutcome:
        run, waiting = self._run, self._run.scope.waiting
        if run.log.is_heavy():
            with waiting.step(), waiting.on("the journal"):
                await run.log.room()
        presence = run.presence
        if presence is not None and not presence.is_here() and key.name not in run.scope.adopted:
            with waiting.step(), waiting.on("its caller, who is away"):
                await presence.wait()
        try:
            return await self._runner.run_step(key, spec, on_event)
        except (Aborted, JournalFailed) as error:  # no fault of the step: the run cannot go on here (C17)
            run.move(error if isinstance(error, JournalFailed) else Fenced())
            raise asyncio.CancelledError from error
