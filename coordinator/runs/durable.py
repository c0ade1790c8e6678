"""Journaled runs: accepted once, found again by any coordinator, gone on with after a crash (C16 to C19)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace

from coordinator.budget import TokenBudget
from coordinator.combinators.runner import StepRunner
from coordinator.journal.journal import KeptRun, NewRun
from coordinator.runs.asking import asked, no_questions
from coordinator.runs.checks import RequestChecks
from coordinator.runs.detached import Jobs
from coordinator.runs.history import History, history_of, trace_of
from coordinator.runs.holding import Holding
from coordinator.runs.journaled import JournaledRun, Tenure
from coordinator.runs.log import ends_run
from coordinator.runs.opening import Opening
from coordinator.runs.outage import outlasting
from coordinator.runs.pipelines import PipelineCall, PipelineRequest, PipelineWork
from coordinator.runs.reader import KeptReader, LiveReader
from coordinator.runs.requests import (
    WorkFactory,
    fan_out_work,
    new_fan_out,
    new_pipeline,
    new_script,
    pipeline_work,
    specs_of,
    work_of,
)
from coordinator.runs.scripts import ScriptRuns
from coordinator.runs.work import CannotGoOn
from coordinator.scope import Hold, Receipts, Scope
from coordinator.tracing import RunTrace
from fanfold.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from fanfold.model.run import EventDetail, Run, RunKind, RunState
from fanfold.model.script import Script
from fanfold.model.step import AgentStepSpec
from fanfold.model.trace import TraceContext
from fanfold.tracing import NO_TRACER, Tracer

_LOOK_SECONDS = 0.1
"""Pause before a run that nobody holds at the moment is looked for again."""

Reader = LiveReader | KeptReader

RunnerFactory = Callable[[Scope], StepRunner]
"""Gives what runs the steps of a run."""

Adopted = Callable[[KeptRun, Scope], AbstractAsyncContextManager[None]]
"""Takes over what former holders of the run have left on nodes, into the scope; nothing else is there in the block."""


class HeldElsewhere(Exception):
    """Another coordinator holds the run, and can be reached at `address`."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """In seconds: how long an attached run waits for its caller, and a call for a run that is being taken over."""

    caller: float = 30.0
    take_over: float = 20.0


class DurableRuns:
    """Accepts journaled runs, and gives their callers and watchers their events."""

    def __init__(
        self,
        holding: Holding,
        runners: RunnerFactory,
        adopted: Adopted,
        checks: RequestChecks,
        waits: Waits,
        jobs: Jobs | None = None,
        scripts: ScriptRuns | None = None,
    ) -> None:
        self.holding = holding
        self.journal = holding.journal
        self._runners = runners
        self._adopted = adopted
        self._checks = checks
        self._waits = waits
        self._jobs = jobs
        self._scripts = scripts
        self.tracer: Tracer = NO_TRACER
        """Traces them."""

    async def start(self, opening: Opening, specs: Sequence[AgentStepSpec]) -> Run:
        """Begin a detached fan-out. Raises as `_start`."""
        return await self._start(opening, await new_fan_out(opening, specs), fan_out_work(specs))

    async def start_script(self, opening: Opening, script: Script, work: WorkFactory) -> Run:
        """Begin a detached script. Raises as `_start`."""
        return await self._start(opening, new_script(opening, script), work)

    async def _start(self, opening: Opening, new: NewRun, work: WorkFactory) -> Run:
        """Begin a detached run, and give it once it can no longer be lost (F6).

        Raises:
            FailedPrecondition: no job registry is configured.
            Unavailable: the registry cannot be reached; nothing was started.
            FanfoldError: as `parallel`, and as the registry refuses the job.
        """
        if self._jobs is None:
            raise FailedPrecondition("no job registry is configured (registry)", reason="NO_REGISTRY")
        run_id = await self._accept(opening, new, work)
        while True:
            found = await self.locate(run_id)
            if isinstance(found, KeptRun):
                return _refusing_what_never_was_a_job(found.run)
            await found.until_accepted()
            if not found.is_pending:
                kept = await self.journal.find(run_id)  # it may have ended by now
                ended = kept is not None and ends_run(kept.run.state)
                return _refusing_what_never_was_a_job(kept.run) if kept is not None and ended else found.view()

    @asynccontextmanager
    async def parallel(self, opening: Opening, specs: Sequence[AgentStepSpec]) -> AsyncIterator[Reader]:
        """The events of a resumable fan-out, while the block lasts. The run does not end with it.

        Raises:
            HeldElsewhere: another coordinator holds the run of this request.
            InvalidArgument: the request id was used for another request.
            Aborted: another request holds the workflow (C18).
            JournalFailed: the journal cannot be written; nothing was started.
        """
        run_id = await self._accept(opening, await new_fan_out(opening, specs), fan_out_work(specs))
        async with self._attending(run_id, opening) as (_, reader):
            yield reader

    @asynccontextmanager
    async def pipeline(self, opening: Opening, request: PipelineRequest) -> AsyncIterator[PipelineCall]:
        """A resumable pipeline and its caller, while the block lasts. The run does not end with it.

        Raises:
            FanfoldError: as `parallel`.
        """
        work = pipeline_work(request, self._checks)
        run_id = await self._accept(opening, new_pipeline(opening, request), work)
        async with self._attending(run_id, opening) as (run, reader):
            if run is None:
                yield PipelineCall(reader, no_questions(), _nothing_to_cancel)
            else:
                assert isinstance(run.work, PipelineWork)
                assert isinstance(reader, LiveReader)
                async with asked(reader, run.work.questions) as source:
                    yield PipelineCall(source, run.work.questions, run.cancel)

    @asynccontextmanager
    async def script(self, opening: Opening, script: Script, work: WorkFactory) -> AsyncIterator[Reader]:
        """The events of a journaled script, while the block lasts. The run does not end with it.

        A caller who has read them to the end leaves the block when nothing of the script is left.

        Raises:
            FanfoldError: as `parallel`.
        """
        run_id = await self._accept(opening, new_script(opening, script), work)
        async with self._attending(run_id, opening) as (run, reader):
            yield reader
            if run is not None:
                await run.until_gone()

    async def _accept(self, opening: Opening, new: NewRun, work: WorkFactory) -> str:
        """The id of the request's run, which is started if it is new."""
        await self._until_free(new)
        trace = RunTrace(self.tracer, opening.trace, await self._former_trace(new.run))
        kept = await self.holding.accept(await self._with_spending(new))
        if kept.run.run_id == new.run.run_id:
            self.holding.start(self._run_of(kept, work, History(), trace))
        elif kept.request_digest != new.request_digest:
            raise InvalidArgument.of_field("open.request_id", "was used for another request")
        return kept.run.run_id

    async def _until_free(self, new: NewRun) -> None:
        """Wait until nothing is left of the workflow's runs that have ended here: no step of theirs is to run twice."""
        asked = (new.run.owner, new.run.workflow_id)
        for run in list(self.holding):
            kept = run.kept
            is_former = run.has_ended and kept.request_id != new.request_id
            if is_former and kept.run.workflow_id and (kept.run.owner, kept.run.workflow_id) == asked:
                await run.until_gone()

    async def _with_spending(self, new: NewRun) -> NewRun:
        """A run with what those before it have spent on its workflow; after full success that starts afresh (C13)."""
        run = new.run
        former = await self.journal.find_workflow(run.owner, run.workflow_id) if run.budget is not None else None
        if run.budget is None or former is None or former.run.budget is None:
            return new
        if _is_full_success(former.run):
            return new
        return replace(new, run=replace(run, budget=replace(run.budget, spent=former.run.budget.spent)))

    async def _former_trace(self, run: Run) -> TraceContext | None:
        """What the workflow's last run was traced as, if this one resumes it and is traced."""
        if not self.tracer.is_on or not run.workflow_id:
            return None
        former = await self.journal.find_workflow(run.owner, run.workflow_id)
        return None if former is None or _is_full_success(former.run) else await trace_of(self.journal, former)

    async def specs_as_before(self, owner: str, workflow_id: str) -> Sequence[AgentStepSpec]:
        """The steps that the workflow's last run was asked for. Raises NotFound if there is none."""
        kept = await self.journal.find_workflow(owner, workflow_id)
        if kept is None or kept.run.kind is not RunKind.PARALLEL:
            raise NotFound(f"no fan-out of a workflow {workflow_id!r} is kept")
        return specs_of(await self.journal.request(kept.run.run_id))

    async def is_known(self, opening: Opening) -> bool:
        """Whether this request has a run. Raises HeldElsewhere if another coordinator holds that."""
        kept = await self.journal.find_request(opening.owner, opening.request_id) if opening.request_id else None
        if kept is not None:
            await self.locate(kept.run.run_id)
        return kept is not None

    @asynccontextmanager
    async def _attending(self, run_id: str, opening: Opening) -> AsyncIterator[tuple[JournaledRun | None, Reader]]:
        """The run's caller is there while the block lasts, with a reader of the events that it asked for.

        The run is None if it has ended.
        """
        found = await self.locate(run_id)
        first = opening.from_sequence if opening.from_run in {"", run_id} else 0
        reader = self._reader_of(found, first, opening.detail)
        if isinstance(found, KeptRun):
            yield None, reader
        elif found.presence and isinstance(reader, LiveReader):
            with found.presence.of(reader):
                yield found, reader
        else:
            yield found, reader

    async def reader(self, run_id: str, first: int, detail: EventDetail) -> Reader:
        """A reader of a run's events, for somebody on whom the run does not depend. Raises as `locate`."""
        return self._reader_of(await self.locate(run_id), first, detail)

    def _reader_of(self, found: JournaledRun | KeptRun, first: int, detail: EventDetail) -> Reader:
        if isinstance(found, JournaledRun):
            return found.reader(first, detail)
        return KeptReader(self.journal, found, first, detail)

    async def locate(self, run_id: str) -> JournaledRun | KeptRun:
        """A run where it is held, or as it ended; one that nobody holds at the moment is waited for.

        Raises:
            HeldElsewhere: another coordinator holds it.
            NotFound: there is no such run.
            Unavailable: nobody has taken it over in time.
        """
        try:
            async with asyncio.timeout(self._waits.take_over):
                while True:
                    if (live := self.holding.get(run_id)) is not None:
                        return live
                    kept = await self.journal.find(run_id)
                    if kept is None:
                        raise NotFound("no such run")
                    if ends_run(kept.run.state):
                        return kept
                    self.refuse_elsewhere(kept)
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise Unavailable("no coordinator has taken the run over yet", retry_delay=1.0) from None

    def refuse_elsewhere(self, kept: KeptRun) -> None:
        """Raise HeldElsewhere if another coordinator holds the run."""
        if kept.lease_left > 0 and kept.holder.address != self.holding.address:
            raise HeldElsewhere(kept.holder.address)

    async def resume(self, kept: KeptRun) -> JournaledRun:
        """A run that was claimed, ready to go on. Raises CannotGoOn if that is for others."""
        if not kept.run.attached and self._jobs is None:
            raise CannotGoOn("no job registry is configured here")
        work = work_of(kept.run.kind, await self.journal.request(kept.run.run_id), self._checks, self._scripts)
        history = await history_of(self.journal, kept, keep_last=kept.run.kind is not RunKind.PARALLEL)
        return self._run_of(kept, work, history, RunTrace(self.tracer, history.trace, history.trace))

    def _run_of(self, kept: KeptRun, work: WorkFactory, history: History, trace: RunTrace) -> JournaledRun:
        run_id, epoch = kept.run.run_id, kept.epoch

        def may_write() -> bool:
            return self.holding.may_write(run_id)

        async def use_node(node: str) -> None:
            if node not in kept.nodes:
                await outlasting(scope.hold, lambda: self.journal.use_node(run_id, epoch, node))

        scope = Scope(
            run_id=run_id,
            owner=kept.run.owner,
            progress=True,
            budget=_budget_of(kept, history),
            created_at=kept.run.created_at,
            epoch=epoch,
            hold=Hold(may_write),
            use_node=use_node,
            receipts=Receipts(),
            trace=trace,
        )
        tenure = Tenure(
            journal=self.journal,
            may_write=may_write,
            adopted=lambda: self._adopted(kept, scope),
            caller_grace=self._waits.caller,
            jobs=self._jobs,
            counts=self.holding.counts.journal,
        )
        return JournaledRun(kept, work(scope), history, scope, self._runners(scope), tenure)


def _budget_of(kept: KeptRun, history: History) -> TokenBudget | None:
    """The run's budget with what former holders have spent of it, if it has one (C13)."""
    budget = kept.run.budget
    if budget is None:
        return None
    exhausted = history.is_budget_exhausted
    return TokenBudget(budget.limit, spent=budget.spent, refused_steps=budget.refused_steps, is_exhausted=exhausted)


def _is_full_success(run: Run) -> bool:
    """Whether nothing of the run is left to be resumed."""
    return run.state is RunState.COMPLETED and not run.steps.failed


def _refusing_what_never_was_a_job(run: Run) -> Run:
    """A run that has ended. Raises Unavailable if it failed before it was a job: asked for again, it begins anew."""
    if run.state is RunState.FAILED and not run.job_id:
        raise Unavailable(f"the run has failed: {run.reason}", reason="NOT_REGISTERED", retry_delay=1.0)
    return run


def _nothing_to_cancel(_reason: str) -> None:
    """The run has ended."""
