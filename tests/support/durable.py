"""Journaled runs of several coordinators over one journal and the agents of this process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

from coordinator.combinators.budgeted import Budgeted
from coordinator.combinators.runner import StepRunner, runner_of
from coordinator.config import Limits
from coordinator.journal.journal import JournalFailed, KeptRun, Retention
from coordinator.journal.memory import MemoryJournal
from coordinator.placement.in_process import InProcessExecutor
from coordinator.runs.checks import RequestChecks
from coordinator.runs.detached import Jobs
from coordinator.runs.durable import DurableRuns, Reader, RunnerFactory, Waits
from coordinator.runs.holding import Holding
from coordinator.runs.leases import Times
from coordinator.runs.opening import Opening
from coordinator.scope import Scope
from fanfold.agent import AgentFailed, StepContext
from fanfold.background import background
from fanfold.model.run import RunEnded, RunEvent, RunStepEvent
from fanfold.model.step import AgentStepSpec, FailureCode, StepEnded, StepStarted, Usage
from fanfold.schema import SchemaValidator
from fanfold.tracing import NO_TRACER, Tracer
from fanfold.wire.run import event_from_bytes

TIMES = Times(lease=3.0, renewal=0.3, claim=0.1, margin=0.5, outage=0.0)
WAITS = Waits(caller=0.6, take_over=5.0)
DEADLINE = 20.0


class Cut:
    """A journal as one coordinator reaches it: `is_cut` makes every call fail, and `refuses` those of one name.

    It is cut off by itself at the first call of the name `is_cut_at`.
    """

    def __init__(self, shared: MemoryJournal) -> None:
        self._shared = shared
        self.is_cut = False
        self.refuses = ""
        self.is_cut_at = ""
        self.request_takes = 0.0
        self._open = asyncio.Event()
        self._open.set()

    @property
    def tells(self) -> bool:
        """What the journal says; it is no call that could fail."""
        return self._shared.tells

    def hold(self) -> None:
        """Let nothing be written."""
        self._open.clear()

    def release(self) -> None:
        """Let it be written after all."""
        self._open.set()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._shared, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            await (self._open.wait() if name == "append" else asyncio.sleep(self.request_takes * (name == "request")))
            self.is_cut = self.is_cut or self.is_cut_at == name
            if self.is_cut or self.refuses == name:
                raise JournalFailed
            return await method(*arguments, **named)

        return call


@dataclass
class Agents:
    """The agents of these tests: what they did, and what they wait for."""

    calls: Counter[str] = field(default_factory=Counter)
    failing: set[str] = field(default_factory=set)
    unpaid: set[str] = field(default_factory=set)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def work(self, spec: AgentStepSpec, _context: Any) -> str:
        self.calls[spec.prompt] += 1
        if spec.prompt in self.failing:
            raise AgentFailed("not today")
        if spec.prompt in self.unpaid:
            raise AgentFailed("no money", code=FailureCode.QUOTA_EXHAUSTED)
        return f"did {spec.prompt}"

    async def spend(self, spec: AgentStepSpec, context: StepContext) -> str:
        """Makes model calls of as many tokens as the prompt says; at "wait" it waits, at "fail" it fails."""
        self.calls[spec.prompt] += 1
        spent = 0
        for turn, word in enumerate(spec.prompt.split(), start=1):
            if word == "wait":
                await self.gate.wait()
            elif word == "fail":
                raise AgentFailed("not today")
            else:
                spent += int(word)
                context.turn_finished(turn, Usage(output_tokens=spent, requests=turn))
        return f"spent {spent}"

    async def wait(self, spec: AgentStepSpec, _context: Any) -> str:
        self.calls[spec.prompt] += 1
        await self.gate.wait()
        return f"did {spec.prompt}"

    def executor(self, validator: SchemaValidator) -> InProcessExecutor:
        return InProcessExecutor({"work": self.work, "wait": self.wait, "spend": self.spend}, validator, parallelism=4)


@dataclass
class Coordinator:
    """One coordinator's durable runs, and its way to the journal."""

    runs: DurableRuns
    journal: Cut


class World:
    """Coordinators that share a journal and agents."""

    def __init__(self, validator: SchemaValidator, stack: AsyncExitStack) -> None:
        self.shared = MemoryJournal()
        self.agents = Agents()
        self._validator = validator
        self._stack = stack

    async def coordinator(
        self,
        name: str,
        runners: RunnerFactory | None = None,
        jobs: Jobs | None = None,
        times: Times = TIMES,
        tracer: Tracer = NO_TRACER,
        address: str = "",
    ) -> Coordinator:
        journal = Cut(self.shared)
        holding = await self._stack.enter_async_context(Holding(journal, name, times, Retention(), jobs))
        await holding.begin(address or name)

        def adopt(kept: KeptRun, scope: Scope) -> AbstractAsyncContextManager[None]:
            if kept.epoch > 1:
                scope.lost_nodes.add("the former holder's")
            return nullcontext()  # executions of this process end with the run that holds them

        executor = self.agents.executor(self._validator)

        def runner(scope: Scope) -> StepRunner:
            if scope.budget is None:
                return runner_of(executor)
            return Budgeted(
                executor,
                scope.budget,
                waiting=scope.waiting,
                unaccounted=scope.unaccounted,
                is_given_up=lambda: scope.hold.is_given_up,
            )

        checks = RequestChecks(self._validator, Limits())
        runs = DurableRuns(holding, runners or runner, adopt, checks, WAITS, jobs)
        runs.tracer = tracer
        await self._stack.enter_async_context(background(holding.keep(runs.resume)))
        return Coordinator(runs, journal)


def specs(*prompts: str, agent: str = "work") -> list[AgentStepSpec]:
    return [AgentStepSpec(task_id=f"t{n}", agent=agent, description="d", prompt=p) for n, p in enumerate(prompts)]


def opening(request_id: str = "", **fields: Any) -> Opening:
    return Opening(owner="alice", workflow_id="audit", request_id=request_id, **fields)


async def read_into(told: list[RunEvent], source: Reader) -> None:
    while page := await source.read():
        told += decoded(page)


async def events_of(coordinator: Coordinator, asked: Opening, steps: Sequence[AgentStepSpec]) -> list[RunEvent]:
    told: list[RunEvent] = []
    async with coordinator.runs.parallel(asked, steps) as source:
        await read_into(told, source)
    return told


def decoded(page: Sequence[bytes]) -> list[RunEvent]:
    return [event for data in page if (event := event_from_bytes(data)) is not None]


def outputs(told: Sequence[RunEvent]) -> dict[int, str]:
    ended = [event for event in told if isinstance(event, RunStepEvent) and isinstance(event.event, StepEnded)]
    assert len({event.index for event in ended}) == len(ended), "a step ended twice"
    return {event.index: event.event.outcome.output for event in ended if isinstance(event.event, StepEnded)}


def started(told: Sequence[RunEvent]) -> list[int]:
    return [each.index for each in told if isinstance(each, RunStepEvent) and isinstance(each.event, StepStarted)]


def end_of(told: Sequence[RunEvent]) -> RunEnded:
    assert isinstance(told[-1], RunEnded)
    return told[-1]
