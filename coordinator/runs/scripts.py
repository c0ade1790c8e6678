"""Workflow scripts that are asked for: what may be, and the runs that are made of them (C21, C25)."""

from __future__ import annotations

import hashlib
import json
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial

from coordinator.combinators.runner import StepRunner
from coordinator.runs.attached_script import AttachedScript
from coordinator.runs.checks import RequestChecks
from coordinator.runs.script_work import ScriptWork
from coordinator.runs.told import Told
from coordinator.scope import Scope
from coordinator.scripts.engine.engine import EngineFailed, ScriptEngine, ScriptProcess, ScriptStart, ScriptSyntaxError
from coordinator.scripts.host.answers import Ended, milliseconds
from coordinator.scripts.host.calls import CallTerms
from coordinator.scripts.host.limits import ScriptLimits
from coordinator.scripts.host.session import Setting
from fanfold.errors import FieldViolation, InvalidArgument, ResourceExhausted
from fanfold.feed import Feed
from fanfold.model.run import EventDetail
from fanfold.model.script import Script
from fanfold.model.step import AgentStepSpec
from fanfold.parts import byte_size


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

    @property
    def running(self) -> int:
        """How many scripts run here."""
        return self._running

    @asynccontextmanager
    async def attached(
        self, detail: EventDetail, scope: Scope, script: Script, wrong: Sequence[FieldViolation], feed: Feed[Told]
    ) -> AsyncIterator[AttachedScript]:
        """The run of a script, which is compiled and has not begun; its process is gone at the end of the block.

        `wrong` is what is known to be wrong with the request.

        Raises:
            InvalidArgument: names everything that is wrong with it, with the place of a syntax error.
            ResourceExhausted: as many scripts run as may.
        """
        started_at = time.time_ns() // 1_000_000
        self._refuse_beyond_limit()
        with self._counted():
            process = await self._compiled(script, scope, started_at, [*wrong, *self._violations(script)])
            try:
                setting = partial(self._setting, script, scope, started_at, ())
                yield AttachedScript(scope, detail, feed, script.meta, process, setting)
            finally:
                await _end(process)

    async def check(self, scope: Scope, script: Script, wrong: Sequence[FieldViolation]) -> None:
        """Raise for everything that is wrong with a script that is to be journaled, as `attached`."""
        self._refuse_beyond_limit()
        await _end(await self._compiled(script, scope, 0, [*wrong, *self._violations(script)]))

    def work(self, script: Script) -> Callable[[Scope], ScriptWork]:
        """The work of a journaled script."""

        async def begin(scope: Scope) -> ScriptProcess:
            return await self._engine.start(_start_of(script, scope, milliseconds(scope.created_at)))

        def make(scope: Scope) -> ScriptWork:
            def setting(runner: StepRunner, replayed: Sequence[Ended]) -> Setting:
                return self._setting(script, scope, milliseconds(scope.created_at), replayed, runner)

            return ScriptWork(script.meta, script.parent, scope, partial(begin, scope), setting, self._counted)

        return make

    def _refuse_beyond_limit(self) -> None:
        if self._running >= self._terms.most_runs:
            limit = f"{self._terms.most_runs:,} scripts run here, which is the limit (scripts.most_runs)"
            raise ResourceExhausted(limit, reason="TOO_MANY_SCRIPTS", retry_delay=1.0)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a script as one that runs. Those that are taken over run also beyond the limit."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def _compiled(
        self, script: Script, scope: Scope, started_at: int, violations: list[FieldViolation]
    ) -> ScriptProcess | EngineFailed:
        """The process of the script, or why there is none: a script that cannot be run is one that has failed (C26)."""
        path = "open.script.source"
        if any(each.field == path for each in violations):  # it is too large to be looked at
            raise InvalidArgument(violations=violations)
        process: ScriptProcess | EngineFailed
        try:
            process = await self._engine.start(_start_of(script, scope, started_at))
        except ScriptSyntaxError as error:
            where = f"line {error.line}, column {error.column}: " if error.line else ""
            raise InvalidArgument(violations=[*violations, FieldViolation(path, f"{where}{error}")]) from None
        except EngineFailed as error:
            process = error
        if violations:
            await _end(process)
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

    def _setting(
        self, script: Script, scope: Scope, started_at: int, replayed: Sequence[Ended], runner: StepRunner
    ) -> Setting:
        """What a script is run with."""
        limits, terms = self._terms.limits, self._terms
        if script.max_total_agents is not None:
            limits = limits.lowered(script.max_total_agents)
        labels = terms.providers.get(script.provider, {}) if script.provider else {}

        async def check(spec: AgentStepSpec) -> None:
            await self._checks.check([spec], owner=scope.owner, path="step")

        return Setting(
            runner=runner,
            terms=CallTerms(parent=script.parent, default_agent=limits.default_agent, node_labels=labels),
            limits=limits,
            check=check,
            budget=scope.budget,
            started_at=started_at,
            replayed=replayed,
        )


def _start_of(script: Script, scope: Scope, started_at: int) -> ScriptStart:
    return ScriptStart(
        source=script.source,
        args=script.args,
        seed=seed_of(scope.run_id),
        now=started_at,
        budget=scope.budget.limit if scope.budget else None,
    )


async def _end(process: ScriptProcess | EngineFailed) -> None:
    if not isinstance(process, EngineFailed):
        process.kill()
        await process.closed()


def seed_of(run_id: str) -> tuple[int, int, int, int]:
    """What a run's script draws its random numbers from: the same for the same run, wherever it goes on (C29)."""
    first, second, third, fourth = struct.unpack("!4I", hashlib.sha256(run_id.encode()).digest()[:16])
    return first, second, third, fourth
