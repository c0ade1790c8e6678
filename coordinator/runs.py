"""Attached runs: from a checked request to the events that its caller reads (C11, C12)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from coordinator.combinators.parallel import fan_out, refuse_duplicates
from coordinator.combinators.runner import StepKey, StepRunner, Unkeyed
from coordinator.config import Limits
from coordinator.scope import Scope
from fanfold.background import background
from fanfold.errors import Aborted, FieldViolation, InvalidArgument
from fanfold.feed import Feed, fed
from fanfold.model.run import (
    EventDetail,
    Run,
    RunEnded,
    RunEvent,
    RunKind,
    RunStarted,
    RunState,
    RunStepEvent,
    StepCounts,
    WaitingChanged,
)
from fanfold.model.step import AgentStepSpec, StepEnded, StepEvent, StepOutcome, StepProgressed, StepStarted
from fanfold.ports import AgentExecutor, OnStepEvent
from fanfold.schema import SchemaValidator

WAITING_INTERVAL = 0.5
"""Seconds between two looks at what a run waits on."""

_log = structlog.get_logger(__name__)

ExecutorFactory = Callable[[Scope], AgentExecutor]
"""Gives the executor of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Who asks for what: what a run is about besides its steps."""

    owner: str
    request_id: str = ""
    detail: EventDetail = EventDetail.OUTCOMES

    def scope(self, kind: str) -> Scope:
        """The scope of a new run."""
        return Scope(
            run_id=f"{kind}-{uuid.uuid4().hex}", owner=self.owner, progress=self.detail is EventDetail.PROGRESS
        )


class Runs:
    """Starts attached runs and single steps, and holds them for as long as their callers do."""

    def __init__(self, executors: ExecutorFactory, validator: SchemaValidator, limits: Limits) -> None:
        self._executors = executors
        self._validator = validator
        self._limits = limits
        self._held: dict[tuple[str, str], datetime] = {}

    @asynccontextmanager
    async def parallel(self, opening: Opening, specs: Sequence[AgentStepSpec]) -> AsyncIterator[Feed[RunEvent]]:
        """A fan-out's events, while the block lasts; leaving it early cancels the run and waits until it is gone.

        Raises:
            InvalidArgument: a step is wrong, or a task id is given twice; nothing was started.
            Aborted: a call with the same request id is under way (C18).
        """
        await self.check(specs, owner=opening.owner)
        refuse_duplicates(specs)
        with self._hold(opening):
            scope = opening.scope("run")
            feed: Feed[RunEvent] = Feed()
            account = _Account(scope, opening.detail, len(specs), feed)
            async with fed(feed, account.keep(self._executors(scope), specs)):
                yield feed

    @asynccontextmanager
    async def step(self, opening: Opening, spec: AgentStepSpec) -> AsyncIterator[Feed[StepEvent]]:
        """One step's events, while the block lasts; leaving it early cancels the step and waits until it is gone.

        Raises:
            InvalidArgument: the step is wrong; nothing was started.
            Aborted: a call with the same request id is under way.
        """
        await self.check([spec], owner=opening.owner, path="step")
        with self._hold(opening):
            executor = self._executors(opening.scope("step"))
            feed: Feed[StepEvent] = Feed()

            def tell(event: StepEvent) -> None:
                if _is_wanted(event, opening.detail, feed):
                    feed.push(event)

            async def work() -> None:
                await executor.execute_step(spec, tell)

            async with fed(feed, work()):
                yield feed

    def refuse_oversize(self, steps: int, size: int) -> None:
        """Raise InvalidArgument as soon as a request that is still being read is too large; `size` in bytes."""
        limits = self._limits
        if steps > limits.steps:
            raise InvalidArgument.of_field("steps", f"must be at most {limits.steps:,} steps (limits.steps)")
        if size > limits.run_bytes:
            raise InvalidArgument.of_field("steps", f"must be at most {limits.run_bytes:,} bytes (limits.run_bytes)")

    def refuse_fat_step(self, size: int, *, path: str) -> None:
        """Raise InvalidArgument for a step of more bytes than any message to a node is to hold."""
        if size > self._limits.step_bytes:
            limit = f"must be at most {self._limits.step_bytes:,} bytes (limits.step_bytes), not {size:,}"
            raise InvalidArgument.of_field(path, limit)

    async def check(self, specs: Sequence[AgentStepSpec], *, owner: str, path: str = "") -> None:
        """Raise InvalidArgument for whatever the configured limits or the schemas' own rules refuse (C20)."""
        limit = self._limits.prompt_bytes
        violations = [
            FieldViolation(
                f"{path or f'steps[{index}]'}.prompt",
                f"must be at most {limit:,} bytes (limits.prompt_bytes), not {size:,}",
            )
            for index, spec in enumerate(specs)
            if len(spec.prompt) * 4 > limit and (size := len(spec.prompt.encode())) > limit
        ]
        if violations:
            raise InvalidArgument(violations=violations)
        checked: set[int] = set()
        for index, spec in enumerate(specs):
            if spec.output_schema is not None and id(spec.output_schema) not in checked:
                checked.add(id(spec.output_schema))
                field = f"{path or f'steps[{index}]'}.output_schema"
                await self._validator.check(spec.output_schema, field=field, owner=owner)

    @contextmanager
    def _hold(self, opening: Opening) -> Iterator[None]:
        if not opening.request_id:
            yield
            return
        key = (opening.owner, opening.request_id)
        since = self._held.get(key)
        if since is not None:
            raise Aborted(
                f"a call with the request id {opening.request_id!r} is under way since {since:%Y-%m-%d %H:%M:%S} UTC",
                reason="REQUEST_UNDER_WAY",
            )
        self._held[key] = datetime.now(UTC)
        try:
            yield
        finally:
            del self._held[key]


class _Account:
    """What a run tells about itself: numbered events, and how many steps are where."""

    def __init__(self, scope: Scope, detail: EventDetail, total: int, feed: Feed[RunEvent]) -> None:
        self._scope = scope
        self._detail = detail
        self._total = total
        self._feed = feed
        self._sequence = 0
        self._running = self._succeeded = self._failed = 0
        self._created_at = datetime.now(UTC)

    async def keep(self, executor: AgentExecutor, specs: Sequence[AgentStepSpec]) -> None:
        """Run the steps and tell the run's life from its start to its end."""
        self._push(RunStarted, run_id=self._scope.run_id, total_steps=self._total)
        # A request stream that broke looks like one that ended; only an answer that arrives tells them apart.
        await self._feed.first_delivered()
        log = _log.bind(run_id=self._scope.run_id, owner=self._scope.owner)
        log.info("run started", steps=self._total)
        try:
            async with background(self._tell_waiting()):
                await fan_out(_Paced(Unkeyed(executor), self._feed, self._scope), specs, self._on_step, _let_go)
        except asyncio.CancelledError:
            log.info("run cancelled", succeeded=self._succeeded, failed=self._failed)
            raise
        log.info("run completed", succeeded=self._succeeded, failed=self._failed)
        self._push(RunEnded, run=self._run(RunState.COMPLETED, datetime.now(UTC)))

    async def _tell_waiting(self) -> None:
        """Tell what the run waits on while nothing moves, as long as that is news (C42)."""
        told = ""
        while True:
            await asyncio.sleep(WAITING_INTERVAL)
            waiting_on = self._scope.waiting.summary()
            if waiting_on != told:
                told = waiting_on
                self._push(WaitingChanged, waiting_on=waiting_on)

    def _push(self, kind: type[RunEvent], **fields: Any) -> None:
        self._feed.push(kind(sequence=self._number(), time=datetime.now(UTC), **fields))

    def _on_step(self, index: int, event: StepEvent) -> None:
        if isinstance(event, StepStarted):
            self._running += 1
        elif isinstance(event, StepEnded):
            self._running -= 1
            if event.outcome.success:
                self._succeeded += 1
            else:
                self._failed += 1
        if _is_wanted(event, self._detail, self._feed):
            weight = len(event.outcome.output) if isinstance(event, StepEnded) else 0
            sequence = 0 if isinstance(event, StepProgressed) else self._number()
            self._feed.push(RunStepEvent(sequence=sequence, time=event.time, index=index, event=event), weight)
        elif isinstance(event, StepStarted):
            self._number()

    def _number(self) -> int:
        self._sequence += 1
        return self._sequence

    def _run(self, state: RunState, ended_at: datetime | None) -> Run:
        return Run(
            run_id=self._scope.run_id,
            kind=RunKind.PARALLEL,
            state=state,
            owner=self._scope.owner,
            attached=True,
            steps=StepCounts(total=self._total, running=self._running, succeeded=self._succeeded, failed=self._failed),
            created_at=self._created_at,
            ended_at=ended_at,
        )


def _is_wanted(event: StepEvent, detail: EventDetail, feed: Feed[RunEvent] | Feed[StepEvent]) -> bool:
    if isinstance(event, StepEnded):
        return True
    if isinstance(event, StepProgressed):
        return detail is EventDetail.PROGRESS and feed.has_room()
    return detail is not EventDetail.OUTCOMES


class _Paced:
    """A runner that begins no further step while the run's caller has a lot to read already (F15)."""

    def __init__(self, runner: StepRunner, feed: Feed[RunEvent], scope: Scope) -> None:
        self._runner = runner
        self._feed = feed
        self._waiting = scope.waiting

    def concurrency_hint(self) -> int:
        return self._runner.concurrency_hint()

    async def run_step(self, key: StepKey, spec: AgentStepSpec, on_event: OnStepEvent | None) -> StepOutcome:
        if self._feed.is_heavy():
            with self._waiting.step(), self._waiting.on("its caller, which has much to read"):
                await self._feed.room()
        return await self._runner.run_step(key, spec, on_event)


def _let_go(_index: int, _outcome: StepOutcome) -> None:
    """The caller is told each outcome by its event; nothing here holds it any longer than that."""
