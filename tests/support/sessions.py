"""Scripts carried out by the real engine and the coordinator's policy, over an executor that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from coordinator.budget import TokenBudget
from coordinator.combinators.budgeted import Budgeted
from coordinator.combinators.runner import runner_of
from coordinator.life import failed
from coordinator.scripts.engine.quickjs import QuickJsEngine
from coordinator.scripts.host.answers import Ended
from coordinator.scripts.host.calls import Call, CallTerms
from coordinator.scripts.host.limits import ScriptLimits
from coordinator.scripts.host.session import ScriptSession, Setting
from fanfold.errors import InvalidArgument
from fanfold.model.script import ScriptResult
from fanfold.model.step import AgentStepSpec, FailureCode, StepEnded, StepEvent, StepOutcome, StepStarted
from fanfold.ports import OnStepEvent
from fanfold.schema import SchemaValidator
from support.scripts import start_of

PATIENCE = 20.0

Answer = Callable[[AgentStepSpec], Awaitable[StepOutcome]]


def succeeded(spec: AgentStepSpec, output: str = "", **fields: Any) -> StepOutcome:
    return StepOutcome(task_id=spec.task_id, agent=spec.agent, success=True, output=output, **fields)


async def echo(spec: AgentStepSpec) -> StepOutcome:
    """What the prompt says: "FAIL <code>" fails so, "JSON" gives a value, "HANG" hangs, else it is the answer."""
    word, _, rest = spec.prompt.partition(" ")
    match word:
        case "FAIL":
            return failed(spec, FailureCode(rest), "as the prompt says")
        case "RAISE":
            raise RuntimeError(rest)
        case "JSON":
            return succeeded(spec, structured={"words": rest.split()})
        case "HANG":
            await asyncio.Event().wait()
        case "LONG":
            return succeeded(spec, "x" * int(rest))
        case "WAIT":
            await asyncio.sleep(float(rest))
    return succeeded(spec, spec.prompt)


class Player:
    """Implements `AgentExecutor` as a test plays it; `most` is how many steps ran at the same time."""

    def __init__(self, answer: Answer = echo, hint: int = 8) -> None:
        self.answer = answer
        self.hint = hint
        self.specs: list[AgentStepSpec] = []
        self.running = self.most = 0

    def concurrency_hint(self) -> int:
        return self.hint

    async def execute_step(self, spec: AgentStepSpec, on_event: OnStepEvent | None = None) -> StepOutcome:
        self.specs.append(spec)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if on_event is not None:
                on_event(StepStarted(task_id=spec.task_id, time=datetime.now(UTC)))
            return replace(await self.answer(spec), ended_at=datetime.now(UTC))
        finally:
            self.running -= 1


@dataclass
class Heard:
    """Implements `Told` for a test: what was told, in order."""

    steps: list[tuple[Call, StepEvent]] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    results: list[ScriptResult] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    calls: int = 0
    pid: int = 0

    def made(self, calls: int) -> None:
        self.calls = calls

    def step(self, call: Call, event: StepEvent) -> None:
        self._note(f"step {call.number}")
        self.steps.append((call, event))

    def phase(self, title: str) -> None:
        self._note(title)
        self.phases.append(title)

    def log(self, message: str) -> None:
        self._note(message)
        self.logs.append(message)

    def settled(self, result: ScriptResult) -> None:
        self.results.append(result)

    async def room(self) -> None:
        pass

    async def until_told(self) -> None:
        pass

    def _note(self, what: str) -> None:
        if self.results:
            self.late.append(what)

    @property
    def result(self) -> ScriptResult:
        (result,) = self.results
        return result

    def check_lives(self) -> None:
        """Exactly one end for each start, none without, one result and nothing after it (C28)."""
        assert len(self.results) == 1
        assert not self.late
        open_calls: set[int] = set()
        seen: set[int] = set()
        for call, event in self.steps:
            if isinstance(event, StepStarted):
                assert call.number not in seen
                seen.add(call.number)
                open_calls.add(call.number)
            elif isinstance(event, StepEnded):
                open_calls.remove(call.number)
        assert not open_calls


@asynccontextmanager
async def begun(
    engine: QuickJsEngine,
    source: str,
    player: Player | None = None,
    *,
    budget: int | None = None,
    default_agent: str = "echo",
    node_labels: dict[str, str] | None = None,
    args: Any = None,
    replayed: Sequence[Ended] = (),
    **limits: Any,
) -> AsyncIterator[tuple[asyncio.Task[None], Heard]]:
    """A script that is being carried out, and what is heard of it; it is cancelled at the end of the block."""
    player = player or Player()
    heard = Heard()
    tokens = None if budget is None else TokenBudget(budget)
    async with SchemaValidator() as validator:

        async def check(spec: AgentStepSpec) -> None:
            if spec.output_schema is not None:
                await validator.check(spec.output_schema, field="step.output_schema")

        setting = Setting(
            runner=runner_of(player if tokens is None else Budgeted(player, tokens)),
            terms=CallTerms(parent="alice/s", default_agent=default_agent, node_labels=node_labels or {}),
            limits=ScriptLimits(**limits),
            check=check,
            budget=tokens,
            replayed=replayed,
        )
        process = await engine.start(start_of(source, args=args, budget=budget))
        heard.pid = process.pid
        task = asyncio.create_task(ScriptSession(process, setting, heard).carry_out())
        try:
            yield task, heard
        finally:
            task.cancel()
            await asyncio.wait([task])


async def carried_out(
    engine: QuickJsEngine, source: str, player: Player | None = None, **options: Any
) -> tuple[ScriptResult, Heard]:
    """What came of a script, and all that was heard of it."""
    async with begun(engine, source, player, **options) as (task, heard):
        async with asyncio.timeout(PATIENCE):
            await task
    heard.check_lives()
    return heard.result, heard


__all__ = ["Heard", "InvalidArgument", "Player", "begun", "carried_out", "echo", "succeeded"]
