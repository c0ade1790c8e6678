"""Runs of workflow scripts that end with their callers' streams (C21 to C28)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from coordinator.budget import SHARES
from coordinator.combinators.runner import runner_of
from coordinator.runs.attached import AttachedRun, Paced
from coordinator.runs.checks import RequestChecks
from coordinator.runs.opening import Opening
from coordinator.scope import Scope
from coordinator.scripts.engine.engine import (
    EngineFailed,
    ScriptEngine,
    ScriptProcess,
    ScriptStart,
    ScriptSyntaxError,
)
from coordinator.scripts.host.calls import Call, CallTerms
from coordinator.scripts.host.limits import ScriptLimits
from coordinator.scripts.host.session import ScriptSession, Setting
from fanfold.background import background
from fanfold.errors import FieldViolation, InvalidArgument, ResourceExhausted
from fanfold.feed import Feed
from fanfold.model.run import LogLine, PhaseStarted, RunEnded, RunKind, RunStarted, RunState
from fanfold.model.script import Script, ScriptResult, StopReason
from fanfold.model.step import AgentStepSpec, StepEvent
from fanfold.parts import byte_size
from fanfold.ports import AgentExecutor

_log = structlog.get_logger(__name__)

_STATES = {
    StopReason.COMPLETED: RunState.COMPLETED,
    StopReason.CANCELLED: RunState.CANCELLED,
    StopReason.ERROR: RunState.FAILED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTerms:
    """What the coordinator allows scripts, besides what counts while they run (C39)."""

    limits: ScriptLimits
    source_bytes: int
    args_bytes: int
    most_runs: int
    providers: Mapping[str, Mapping[str, str]]
    """The executor pools, by name: the labels of their nodes. The empty name is all nodes."""


class ScriptRuns:
    """Checks scripts and makes runs of them."""

    def __init__(self, engine: ScriptEngine, checks: RequestChecks, terms: ScriptTerms) -> None:
        self._engine = engine
        self._checks = checks
        self._terms = terms
        self._running = 0

    @asynccontextmanager
    async def opened(
        self, opening: Opening, scope: Scope, script: Script, wrong: Sequence[FieldViolation], feed: Feed[bytes]
    ) -> AsyncIterator[AttachedScript]:
        """The run of a script, which is compiled and has not begun; its process is gone at the end of the block.

        `wrong` is what is known to be wrong with the request.

        Raises:
            InvalidArgument: names everything that is wrong with it, with the place of a syntax error.
            ResourceExhausted: as many scripts run as may.
        """
        violations = [*wrong, *self._violations(script)]
        if self._running >= self._terms.most_runs:
            limit = f"{self._terms.most_runs:,} scripts run here, which is the limit (scripts.most_runs)"
            raise ResourceExhausted(limit, reason="TOO_MANY_SCRIPTS", retry_delay=1.0)
        self._running += 1
        try:
            process = await self._compiled(script, scope, violations)
            try:
                yield AttachedScript(scope, opening, script, feed, self._fitted(script), process)
            finally:
                if not isinstance(process, EngineFailed):
                    process.kill()
                    await process.closed()
        finally:
            self._running -= 1

    async def _compiled(
        self, script: Script, scope: Scope, violations: list[FieldViolation]
    ) -> ScriptProcess | EngineFailed:
        """The process of the script, or why there is none: a script that cannot be run is one that has failed (C26)."""
        start = ScriptStart(
            source=script.source,
            args=script.args,
            seed=seed_of(scope.run_id),
            now=time.time_ns() // 1_000_000,
            budget=scope.budget.limit if scope.budget else None,
        )
        path = "open.script.source"
        if any(each.field == path for each in violations):  # it is too large to be looked at
            raise InvalidArgument(violations=violations)
        process: ScriptProcess | EngineFailed
        try:
            process = await self._engine.start(start)
        except ScriptSyntaxError as error:
            where = f"line {error.line}, column {error.column}: " if error.line else ""
            raise InvalidArgument(violations=[*violations, FieldViolation(path, f"{where}{error}")]) from None
        except EngineFailed as error:
            process = error
        if violations:
            if not isinstance(process, EngineFailed):
                process.kill()
                await process.closed()
            raise InvalidArgument(violations=violations)
        return process

    def _violations(self, script: Script) -> list[FieldViolation]:
        """What the limits and the configuration do not allow."""
        terms, violations = self._terms, []

        def refuse(field: str, why: str) -> None:
            violations.append(FieldViolation(f"open.script.{field}", why))

        if not script.source.strip():
            refuse("source", "is required")
        elif byte_size(script.source) > terms.source_bytes:
            refuse("source", f"must be at most {terms.source_bytes:,} bytes (scripts.source_bytes)")
        if len(json.dumps(script.args, ensure_ascii=False).encode()) > terms.args_bytes:
            refuse("args_json", f"must be at most {terms.args_bytes:,} bytes (scripts.args_bytes)")
        if script.provider and script.provider not in terms.providers:
            refuse("provider", f"there is no pool {script.provider[:128]!r} (scripts.providers)")
        most = terms.limits.max_total_agents
        if script.max_total_agents is not None and not 1 <= script.max_total_agents <= most:
            refuse("max_total_agents", f"must be 1 to {most:,} (scripts.max_total_agents)")
        return violations

    def _fitted(self, script: Script) -> Fitted:
        """What a script's session is made with, apart from where its steps run."""
        limits, terms = self._terms.limits, self._terms
        if script.max_total_agents is not None:
            limits = limits.lowered(script.max_total_agents)
        labels = terms.providers.get(script.provider, {}) if script.provider else {}
        call_terms = CallTerms(parent=script.parent, default_agent=limits.default_agent, node_labels=labels)
        return Fitted(limits, call_terms, self._checks)


@dataclass(frozen=True, slots=True)
class Fitted:
    """The limits of one script, the terms of its calls, and what checks their steps."""

    limits: ScriptLimits
    calls: CallTerms
    checks: RequestChecks


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
        opening: Opening,
        script: Script,
        feed: Feed[bytes],
        fitted: Fitted,
        process: ScriptProcess | EngineFailed,
    ) -> None:
        self._counts = _Counts()
        super().__init__(scope, opening.detail, self._counts, feed)
        self._script = script
        self._fitted = fitted
        self._process = process

    async def keep(self, executor: AgentExecutor) -> None:
        """Carry the script out and tell its life from its start to its end."""
        self._push(RunStarted, run_id=self.run_id, total_steps=0, script=self._script.meta)
        await self._feed.first_delivered()
        _log.info("script started", run_id=self.run_id, owner=self.owner, name=self._script.meta.name)
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
        owner, fitted = self.owner, self._fitted

        async def check(spec: AgentStepSpec) -> None:
            await fitted.checks.check([spec], owner=owner, path="step")

        setting = Setting(
            runner=Paced(runner_of(executor), self._feed, self._scope),
            terms=fitted.calls,
            limits=fitted.limits,
            check=check,
            budget=self._scope.budget,
        )
        return ScriptSession(process, setting, self)

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

    def settled(self, result: ScriptResult) -> None:
        """Tell what came of it; nothing is told after that."""
        state = _STATES[result.stop_reason]
        self._running = 0
        ended = self._run(state, datetime.now(UTC), result.error)
        self._push(RunEnded, run=ended, error=result.error, script_result=result)
        self._ended = ended
        _log.info(f"script {state}", run_id=self.run_id, owner=self.owner, agents=result.agents_started)


def seed_of(run_id: str) -> tuple[int, int, int, int]:
    """What a run's script draws its random numbers from: the same for the same run, wherever it goes on (C29)."""
    first, second, third, fourth = struct.unpack("!4I", hashlib.sha256(run_id.encode()).digest()[:16])
    return first, second, third, fourth
