"""The run of a workflow script that ends with its caller's stream (C21 to C28)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from coordinator.budget import SHARES
from coordinator.combinators.runner import StepRunner, runner_of
from coordinator.runs.attached import AttachedRun, Paced
from coordinator.runs.told import Told
from coordinator.runs.traced import traced
from coordinator.scope import Scope
from coordinator.scripts.engine.engine import EngineFailed, ScriptProcess
from coordinator.scripts.host.calls import Call
from coordinator.scripts.host.session import ScriptSession, Setting
from fanfold.background import background
from fanfold.feed import Feed
from fanfold.model.run import EventDetail, LogLine, PhaseStarted, RunEnded, RunKind, RunStarted, RunState
from fanfold.model.script import ScriptMeta, ScriptResult, StopReason
from fanfold.model.step import StepEvent
from fanfold.ports import AgentExecutor

_log = structlog.get_logger(__name__)

_STATES = {
    StopReason.COMPLETED: RunState.COMPLETED,
    StopReason.CANCELLED: RunState.CANCELLED,
    StopReason.ERROR: RunState.FAILED,
}


class _Counts:
    """How many calls a script has made; nobody knows how many it will make."""

    kind = RunKind.SCRIPT
    most_steps = SHARES

    def __init__(self) -> None:
        self.total = 0


class AttachedScript(AttachedRun):
    """A script's run: its events and its result, which is there as soon as the script is decided (C27).

    It is not gone before the script's process and all of its steps are.
    """

    def __init__(
        self,
        scope: Scope,
        detail: EventDetail,
        feed: Feed[Told],
        meta: ScriptMeta,
        process: ScriptProcess | EngineFailed,
        setting: Callable[[StepRunner], Setting],
    ) -> None:
        self._counts = _Counts()
        super().__init__(scope, detail, self._counts, feed, meta.name)
        self._meta = meta
        self._process = process
        self._setting = setting

    async def keep(self, executor: AgentExecutor) -> None:
        """Carry the script out and tell its life from its start to its end."""
        self._push(RunStarted, run_id=self.run_id, total_steps=0, script=self._meta, trace=self._scope.trace.context)
        await self._feed.first_delivered()
        _log.info("script started", run_id=self.run_id, owner=self.owner, name=self._meta.name)
        try:
            if isinstance(self._process, EngineFailed):
                self.settled(ScriptResult(stop_reason=StopReason.ERROR, error=str(self._process)))
                return
            async with background(self._tell_waiting()), asyncio.TaskGroup() as tasks:
                self._task = tasks.create_task(self._session(executor, self._process).carry_out())
                if self._cancel_reason is not None:
                    self._task.cancel()
            if self._ended is None:  # it was cancelled before its first line
                self.settled(ScriptResult(stop_reason=StopReason.CANCELLED))
        finally:
            self._gone.set()

    def _session(self, executor: AgentExecutor, process: ScriptProcess) -> ScriptSession:
        runner = traced(runner_of(executor), self._scope)
        return ScriptSession(process, self._setting(Paced(runner, self._feed, self._scope)), self)

    def made(self, calls: int) -> None:
        """The script has made so many calls."""
        self._counts.total = calls

    def step(self, call: Call, event: StepEvent) -> None:
        """Tell what happened to the step of a call."""
        self._tell_step(event, call.number, label=call.label, phase=call.phase)

    def phase(self, title: str) -> None:
        """Tell that the script entered a phase."""
        self._push(PhaseStarted, title=title)

    def log(self, message: str) -> None:
        """Tell a line of the script."""
        self._push(LogLine, message=message)

    async def room(self) -> None:
        """Wait while the caller has much to read."""
        await self._feed.room()

    async def until_told(self) -> None:
        """Nothing of it is kept anywhere."""

    def settled(self, result: ScriptResult) -> None:
        """Tell what came of it; nothing is told after that."""
        state = _STATES[result.stop_reason]
        self._running = 0
        ended = self._run(state, datetime.now(UTC), result.error)
        self._push(RunEnded, run=ended, error=result.error, script_result=result)
        self._ended = ended
        _log.info(f"script {state}", run_id=self.run_id, owner=self.owner, agents=result.agents_started)
