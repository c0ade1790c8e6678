"""A run that outlives its caller's stream and its coordinator: its life while this coordinator holds it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace

import structlog

from coordinator.combinators.runner import StepRunner
from coordinator.counts import JournalCounts
from coordinator.journal.journal import Fenced, Journal, JournalFailed, KeptRun, PayloadGone, Record
from coordinator.runs.account import Account
from coordinator.runs.detached import Jobs, RunJob
from coordinator.runs.gate import Gate
from coordinator.runs.history import History
from coordinator.runs.inheritance import inherit
from coordinator.runs.log import RunLog
from coordinator.runs.outage import outlasting
from coordinator.runs.presence import Presence
from coordinator.runs.reader import LiveReader
from coordinator.runs.recall import Recall
from coordinator.runs.results import Outcomes, Result, Returned
from coordinator.runs.traced import traced
from coordinator.runs.work import CannotGoOn, Work
from coordinator.scope import Scope
from coordinator.waiting import LOOK_SECONDS, Standstill, WaitsOn
from fanfold.background import background
from fanfold.errors import Aborted, FanfoldError, Unavailable
from fanfold.model.run import EventDetail, Run, RunState

THE_REGISTRY = "the job registry"

REGISTERED_WITHIN = 1.0
"""Seconds that a run which is cancelled while it is being registered waits for that: a job that it knows of can be
settled at once, one that it does not only when the registry gives it up."""

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
    jobs: Jobs | None = None
    """Where detached runs are registered."""
    counts: JournalCounts = field(default_factory=JournalCounts)


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
        self._held_since = time.monotonic()
        self.ended_as: RunState | None = None
        """How it has ended, or is about to be told to have ended; something of it may still be there."""
        self.left_because = ""
        """Why only others can go on with it."""
        self._task: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()
        self.presence = Presence(grace=tenure.caller_grace) if kept.run.attached else None
        self._account = Account(kept, work, history, scope)
        self.log = self._account.log = RunLog(
            tenure.journal,
            kept.run.run_id,
            last_sequence=kept.last_sequence,
            standing=self._account.standing,
            on_durable=self._acknowledge,
            may_write=lambda: tenure.may_write() or not scope.hold.is_given_up,
            counts=tenure.counts,
        )
        self.job = self._job_of(kept)

    def _job_of(self, kept: KeptRun) -> RunJob | None:
        jobs, account = self._tenure.jobs, self._account
        if kept.run.attached or jobs is None:
            return None
        label = kept.run.workflow_id or self.work.title
        return RunJob(
            kept,
            jobs,
            self._tenure.journal,
            label=label,
            parent=self.work.parent,
            counts=account.counts,
            trace=self.scope.trace,
        )

    @property
    def is_pending(self) -> bool:
        """Whether nothing of it has begun yet. A former holder may have told its start on the way to its failure."""
        return self._account.is_pending or (self.job is not None and not self.job.job_id)

    @property
    def has_ended(self) -> bool:
        """Whether its end is told, or about to be; something of it may still be there."""
        return self.ended_as is not None

    # What others do with it.

    def reader(self, first: int, detail: EventDetail) -> LiveReader:
        """A reader of its events from number `first` on."""
        return LiveReader(self.log, first, detail)

    def view(self) -> Run:
        """The run as it now is. What its journal keeps from being told is said here (C42)."""
        run = self._account.view()
        if self.is_pending and self.job is not None:
            run = replace(run, state=RunState.PENDING, waiting_on=THE_REGISTRY)
        return replace(run, waiting_on="the journal, which cannot be written") if self._is_held_up() else run

    @property
    def standstill(self) -> Standstill | None:
        """What it waits on while nothing of it moves, and since when (C42)."""
        if self.log.failing_since is not None:
            return Standstill(WaitsOn.JOURNAL, self.log.failing_since)
        if self.is_pending and self.job is not None:
            return Standstill(WaitsOn.REGISTRY, self._held_since)
        return self.scope.waiting.standstill

    def _is_held_up(self) -> bool:
        """Whether its journal is away, so that nothing can be told of it."""
        return self.log.is_failing() or not (self.scope.hold.is_certain() or self.scope.hold.is_given_up)

    def renewed(self) -> None:
        """It is certainly held here, for a while."""
        self.scope.hold.renewed()

    def cancel(self, reason: str) -> None:
        """Have it cancelled; the first reason is kept."""
        if self._cancel_reason is None and not self.has_ended:
            self._cancel_reason = reason
            if self.job is not None:
                self.job.stop(reason)
            self._stop_work()

    def _stop_work(self) -> None:
        if self._task is None:
            return
        if self.job is not None and not self.job.job_id:
            asyncio.get_running_loop().call_later(REGISTERED_WITHIN, self._task.cancel)
        else:
            self._task.cancel()

    def move(self, why: FanfoldError) -> None:
        """Stop it here without a trace, so that another coordinator goes on with it: its executions are left alone."""
        if self._moving is None and not self.has_ended:
            self._moving = why
            self.scope.hold.give_up()
            for task in (self._task, self._settling):
                if task is not None:
                    task.cancel()

    def _leave(self, why: CannotGoOn) -> None:
        """Leave it to coordinators that can go on with it."""
        self.left_because = why.message
        self.move(Unavailable("the run moves to another coordinator", reason="RUN_MOVED", retry_delay=0.5))

    async def until_accepted(self) -> None:
        """Wait until a detached run can no longer be lost, or is over.

        Raises:
            FanfoldError: why it could not be registered; it has failed.
        """
        while self.is_pending and not self._gone.is_set():
            await self.log.changed.wait()
        if self.job is not None and self.job.refusal is not None:
            await self.until_gone()
            raise self.job.refusal

    async def until_gone(self) -> None:
        """Wait until it has ended or was moved, and nothing of it is left here."""
        await self._gone.wait()

    # Its life.

    async def live(self) -> None:
        """Carry it out until it has ended, was moved, or cannot go on."""
        log = _log.bind(run_id=self.scope.run_id, owner=self.scope.owner, workflow_id=self.kept.run.workflow_id)
        log.info("run held", epoch=self.kept.epoch, steps=self.work.total)
        self._begin_trace()
        try:
            async with background(self._write(), self._tell_waiting(), self._watch_caller(), self._attend_job()):
                state = await self._until_end()
                if state is not None:
                    log.info(f"run {state}", reason=self._reason_of(state))
                else:
                    await self._depart()
                    log.info("run let go")
        except* FanfoldError as errors:
            log.warning("run cannot go on here", why=[str(error) for error in errors.exceptions])
        finally:
            self.log.close(Unavailable("the run cannot go on here; ask again", reason="RUN_MOVED", retry_delay=1.0))
            if self.job is not None:
                await self.job.let_go()
            self._end_trace()
            self._gone.set()
            self.log.wake()

    def _begin_trace(self) -> None:
        run, script = self.kept.run, self.work.script
        name = script.name if script else ""
        self.scope.trace.begin(
            run.run_id, run.owner, run.kind, name=name, workflow_id=run.workflow_id, epoch=self.kept.epoch
        )

    def _end_trace(self) -> None:
        state = self.ended_as
        reason = "" if state is None else self._reason_of(state)
        self.scope.trace.end(state, self._account.counts(), reason)

    async def _until_end(self) -> RunState | None:
        """Do the work and tell its end; the state in which it ends, or None if the run is to be moved.

        The end of a script is told as soon as it is decided, while its steps may still be stopping (C27); but a job is
        settled only when nothing of it is left (C36).
        """
        async with asyncio.TaskGroup() as tasks:
            self._task = tasks.create_task(self._do())
            if self._moving is not None:
                self._task.cancel()
            elif self._cancel_reason is not None:
                self._stop_work()
            if self.job is None and self.work.decided is not None:
                await asyncio.wait([self._task, self.work.decided], return_when=asyncio.FIRST_COMPLETED)
                if not self._task.done():
                    self._account.forfeit()
                    await self._end(self._state())
        if self._moving is None and self.ended_as is None:
            await self._end(self._state())
        return self.ended_as

    def _state(self) -> RunState:
        assert self._task is not None
        was_cancelled = self._task.cancelled() if self._task.done() else self._cancel_reason is not None
        if was_cancelled:
            return RunState.CANCELLED
        return RunState.FAILED if self._why_failed else RunState.COMPLETED

    @property
    def _why_failed(self) -> str:
        return self._failure or self.work.failure or self._account.shortfall

    def _reason_of(self, state: RunState) -> str:
        return self._cancel_reason or "" if state is RunState.CANCELLED else self._why_failed

    async def _end(self, state: RunState) -> None:
        """Tell the end, once the run's job is settled, unless the run is moved before."""
        self._account.tell_start()
        self._account.note_stop()
        if self.job is not None:
            await self.log.flush()
            async with asyncio.TaskGroup() as tasks:
                self._settling = tasks.create_task(self._settle(self.job, state))
                if self._moving is not None:
                    self._settling.cancel()
        if self._moving is None:
            self.ended_as = state
            await self._account.tell_end(state, self._reason_of(state))

    async def _settle(self, job: RunJob, state: RunState) -> None:
        run = self._account.view(state, reason=self._reason_of(state))
        script = self.work.result_in(state, run.reason)
        outcomes = Outcomes(self._tenure.journal, run, last=self.log.durable)
        result: Result = outcomes if script is None else Returned(script)
        with self.scope.waiting.step(), self.scope.waiting.on(WaitsOn.REGISTRY, THE_REGISTRY):
            reason = await job.settle(run, result)
        if state is RunState.CANCELLED:
            self._cancel_reason = reason

    async def _register(self, job: RunJob) -> bool:
        """Have a detached run be a job before anything of it starts; whether it is one."""
        try:
            await job.register()
        except (Aborted, JournalFailed) as error:
            self.move(error if isinstance(error, JournalFailed) else Fenced())
            raise asyncio.CancelledError from error
        except FanfoldError as error:
            self._failure = f"it could not be registered as a job: {error.message}"
            return False
        self._account.job_id = job.job_id
        return True

    async def _do(self) -> None:
        is_registered = self.job is None or await self._register(self.job)
        if self._cancel_reason is not None:
            raise asyncio.CancelledError
        if not is_registered:
            return
        self._account.tell_start()
        self.log.wake()
        journal, owner, workflow_id = self._tenure.journal, self.scope.owner, self.kept.run.workflow_id
        records: Sequence[Record] = ()
        try:
            if workflow_id:
                records = await outlasting(self.scope.hold, lambda: journal.records(owner, workflow_id))
        except PayloadGone as error:  # whoever goes on with the run finds the same
            self._failure = error.message
            return
        async with self._tenure.adopted():
            inherit(self.scope, self._runner, self.work, self._history)
            gate = Gate(traced(self._runner, self.scope), self)
            tell_changed, item_hash = self._account.tell_changed, self.work.item_hash
            recall = Recall(gate, records, tell_changed, item_hash, keeps=bool(workflow_id))
            self._account.recall = recall
            try:
                await self.work.carry_out(recall, self._history, self._account, list(self.scope.adopted))
            except CannotGoOn as error:
                self._leave(error)
                raise asyncio.CancelledError from error

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
            while self._is_held_up():  # its caller could not come back
                await asyncio.sleep(LOOK_SECONDS)
                await self.presence.until_given_up()
            self.cancel(f"its caller did not come back within {self.presence.grace:g} s")

    async def _attend_job(self) -> None:
        if self.job is not None:
            await self.job.attend(self, self.reader(1, EventDetail.OUTCOMES))

    async def _tell_waiting(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self.is_pending:
                self._account.tell_waiting(self.scope.waiting.look())

    def _acknowledge(self, names: Sequence[str]) -> None:
        """The endings of these steps are durable: their nodes need not keep them any more."""
        if self.scope.receipts is not None:
            for name in names:
                self.scope.receipts.settled(name)
