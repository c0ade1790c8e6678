"""What callers can ask for: runs and single steps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Protocol

from coordinator.combinators.parallel import refuse_duplicates
from coordinator.combinators.runner import StepKey, run_to_end, runner_of
from coordinator.counts import RunCounts
from coordinator.runs.attached import AttachedRun, AttachedWork, is_wanted
from coordinator.runs.checks import RequestChecks
from coordinator.runs.durable import DurableRuns
from coordinator.runs.opening import Opening
from coordinator.runs.pipelines import PipelineCall, PipelineRequest, PipelineWork
from coordinator.runs.questions import Questions
from coordinator.runs.script_work import ScriptWork
from coordinator.runs.scripts import ScriptRuns
from coordinator.runs.told import Told
from coordinator.runs.traced import traced
from coordinator.runs.work import ParallelWork
from coordinator.scope import Scope
from fanfold.errors import Aborted, FailedPrecondition, FieldViolation
from fanfold.feed import Feed, fed
from fanfold.model.pipeline import StageRequest
from fanfold.model.run import Run
from fanfold.model.script import Script
from fanfold.model.step import AgentStepSpec, StepEvent
from fanfold.ports import AgentExecutor
from fanfold.tracing import NO_TRACER, Tracer

ExecutorFactory = Callable[[Scope], AgentExecutor]
"""Gives the executor of a run."""


MAX_ENDED = 1_000
"""Runs without a workflow id that are remembered when they have ended."""


class EventSource(Protocol):
    """A run's events for one caller."""

    async def read(self) -> Sequence[Told]:
        """The next events, waiting for at least one; none at the end."""
        ...


class Runs:
    """Starts runs and single steps. Those without a workflow id are held for as long as their callers do.

    `durable` is for the others, None if no journal is configured. `counts` counts those that end with their callers.
    """

    def __init__(
        self,
        executors: ExecutorFactory,
        checks: RequestChecks,
        durable: DurableRuns | None = None,
        scripts: ScriptRuns | None = None,
        counts: RunCounts | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self._executors = executors
        self._checks = checks
        self._durable = durable
        self._scripts = scripts
        self._counts = counts or RunCounts()
        self._tracer = tracer
        self._held: dict[tuple[str, str], datetime] = {}
        self.attached: dict[str, AttachedRun] = {}
        """The runs that end with their callers' streams, by id."""
        self.ended: dict[str, Run] = {}
        """The last of them as they ended, so that who asks twice for one to be gone is told twice that it is (C27)."""

    @property
    def durable(self) -> DurableRuns:
        """The journaled runs. Raises FailedPrecondition if there is no journal (C17)."""
        if self._durable is None:
            raise FailedPrecondition("no journal is configured (journal.path or journal.url)", reason="NO_JOURNAL")
        return self._durable

    @property
    def has_journal(self) -> bool:
        """Whether a journal is configured."""
        return self._durable is not None

    @asynccontextmanager
    async def parallel(self, opening: Opening, specs: Sequence[AgentStepSpec]) -> AsyncIterator[EventSource]:
        """A fan-out's events, while the block lasts.

        Without a workflow id, leaving it early cancels the run and waits until it is gone.

        Raises:
            InvalidArgument: a step is wrong, or a task id is given twice; nothing was started.
            Aborted: a call with the same request id is under way, or another one holds the workflow (C18).
            FailedPrecondition: it has a workflow id, and there is no journal (C17).
            HeldElsewhere: another coordinator holds the run.
        """
        specs = await self._checked(opening, specs)
        source = self.durable.parallel(opening, specs) if opening.workflow_id else self._attached(opening, specs)
        async with source as events:
            yield events

    async def start(self, opening: Opening, specs: Sequence[AgentStepSpec]) -> Run:
        """Begin a detached fan-out, and give it once it can no longer be lost (F6).

        Raises:
            InvalidArgument: a step is wrong, or a task id is given twice; nothing was started.
            FailedPrecondition: no journal or no job registry is configured.
            FanfoldError: as `DurableRuns.start`.
        """
        return await self.durable.start(opening, await self._checked(opening, specs))

    async def start_script(self, opening: Opening, script: Script, wrong: Sequence[FieldViolation]) -> Run:
        """Begin a detached script, and give it once it can no longer be lost (F6).

        Raises:
            InvalidArgument: names everything that is wrong; nothing was started.
            FailedPrecondition: no journal or no job registry is configured.
            FanfoldError: as `script` and `DurableRuns.start`.
        """
        work = await self._journaled_script(opening, script, wrong)
        return await self.durable.start_script(opening, script, work)

    async def _journaled_script(
        self, opening: Opening, script: Script, wrong: Sequence[FieldViolation]
    ) -> Callable[[Scope], ScriptWork]:
        """The work of a script that is to be journaled, which is checked unless it was asked for before.

        Raises as `script`.
        """
        assert self._scripts is not None
        if not await self.durable.is_known(opening) or wrong:
            await self._scripts.check(opening.scope("script"), script, wrong)
        return self._scripts.work(script)

    async def _checked(self, opening: Opening, specs: Sequence[AgentStepSpec]) -> Sequence[AgentStepSpec]:
        if opening.as_before:
            specs = await self.durable.specs_as_before(opening.owner, opening.workflow_id)
        await self._checks.check(specs, owner=opening.owner)
        refuse_duplicates(specs)
        return specs

    @asynccontextmanager
    async def _attached(self, opening: Opening, specs: Sequence[AgentStepSpec]) -> AsyncIterator[EventSource]:
        with self._hold(opening):
            scope = opening.scope("run", self._tracer)
            feed: Feed[Told] = Feed()
            run = AttachedWork(scope, opening.detail, ParallelWork(specs), feed)
            with self._listed(run):
                async with fed(feed, run.keep(self._executors(scope))):
                    yield feed

    @asynccontextmanager
    async def script(
        self, opening: Opening, script: Script, wrong: Sequence[FieldViolation]
    ) -> AsyncIterator[EventSource]:
        """A script's events, while the block lasts; `wrong` is what is known to be wrong with the request.

        Without a workflow id, leaving it early cancels the run and waits until it is gone.

        Raises:
            InvalidArgument: names everything that is wrong; nothing was started.
            Aborted: a call with the same request id is under way.
            ResourceExhausted: as many scripts run as may.
            FailedPrecondition: it has a workflow id, and there is no journal (C17).
            HeldElsewhere: another coordinator holds the run.
        """
        assert self._scripts is not None
        if opening.workflow_id:
            work = await self._journaled_script(opening, script, wrong)
            async with self.durable.script(opening, script, work) as events:
                yield events
            return
        with self._hold(opening):
            scope = opening.scope("script", self._tracer)
            feed: Feed[Told] = Feed()
            async with self._scripts.attached(opening.detail, scope, script, wrong, feed) as run:
                with self._listed(run):
                    async with fed(feed, run.keep(self._executors(scope))):
                        yield feed

    @asynccontextmanager
    async def pipeline(self, opening: Opening, request: PipelineRequest) -> AsyncIterator[PipelineCall]:
        """A pipeline, while the block lasts.

        Without a workflow id, leaving it early cancels the run and waits until it is gone.

        Raises:
            Aborted: a call with the same request id is under way, or another one holds the workflow (C18).
            FailedPrecondition: it has a workflow id, and there is no journal (C17).
            HeldElsewhere: another coordinator holds the run.
        """
        kind = self.durable.pipeline if opening.workflow_id else self._attached_pipeline
        async with kind(opening, request) as call:
            yield call

    @asynccontextmanager
    async def _attached_pipeline(self, opening: Opening, request: PipelineRequest) -> AsyncIterator[PipelineCall]:
        with self._hold(opening):
            scope = opening.scope("run", self._tracer)
            feed: Feed[Told | StageRequest] = Feed()
            questions = Questions(scope.waiting, timeout=request.stage_timeout, most=request.most_requests)
            work = PipelineWork(request, questions, self._checks, opening.owner)
            run = AttachedWork(scope, opening.detail, work, feed)

            def put(question: StageRequest) -> None:
                feed.push(question, len(question.previous.output) if question.previous else 0)

            with self._listed(run), questions.put_to(put):
                async with fed(feed, run.keep(self._executors(scope))):
                    yield PipelineCall(feed, questions, run.cancel)

    @contextmanager
    def _listed(self, run: AttachedRun) -> Iterator[None]:
        self.attached[run.run_id] = run
        self._counts.follow(run.scope.budget)
        try:
            yield
        finally:
            del self.attached[run.run_id]
            run.leave()
            self.ended[run.run_id] = ended = run.view()
            self._counts.note_ended(ended)
            if len(self.ended) > MAX_ENDED:
                del self.ended[next(iter(self.ended))]

    @asynccontextmanager
    async def step(self, opening: Opening, spec: AgentStepSpec) -> AsyncIterator[Feed[StepEvent]]:
        """One step's events, while the block lasts; leaving it early cancels the step and waits until it is gone.

        Raises:
            InvalidArgument: the step is wrong; nothing was started.
            Aborted: a call with the same request id is under way.
        """
        await self._checks.check([spec], owner=opening.owner, path="step")
        with self._hold(opening):
            scope, feed = opening.scope("step", self._tracer), Feed[StepEvent]()
            scope.pace.follow(feed)
            runner = traced(runner_of(self._executors(scope)), scope)

            def tell(event: StepEvent) -> None:
                if is_wanted(event, opening.detail, feed):
                    feed.push(event)

            async def work() -> None:
                await run_to_end(runner, StepKey.of_spec(0, spec), spec, tell)

            async with fed(feed, work()):
                yield feed

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
