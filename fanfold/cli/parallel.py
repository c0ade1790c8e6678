"""`fanfold parallel` and `fanfold resume`: run steps and print what came of them."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from fanfold.cli.connection import connected
from fanfold.cli.exits import Interrupted
from fanfold.cli.interruption import run_interruptibly
from fanfold.cli.outcomes import View, show_outcomes, summary
from fanfold.cli.output import tell
from fanfold.cli.progress import Tally, shown
from fanfold.cli.run_view import show_started
from fanfold.cli.specs import read_steps
from fanfold.errors import Cancelled, InvalidArgument, Unavailable
from fanfold.model.run import Budget, ParallelResult
from fanfold.model.step import AgentStepSpec, FailureCode, StepEvent, StepFailure, StepOutcome
from fanfold.sdk.mesh import Mesh
from fanfold.sdk.parallel import OnStepEvent, ParallelRun
from fanfold.sdk.started import StartedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a fan-out is about besides its steps. With a workflow id it is resumable."""

    server: str | None = None
    workflow_id: str = ""
    budget_tokens: int | None = None
    request_id: str = ""


def parallel(source: str, order: Order, view: View, *, quiet: bool) -> bool:
    """Run the steps in `source` and print their outcomes. Whether all of them succeeded.

    A run that has begun and is broken off is printed too, with what had come of it until then.

    Raises:
        InvalidArgument: a step is wrong; nothing was started.
        Unavailable: the mesh cannot be reached, or was lost.
        Interrupted: by a signal; the run was cancelled.
    """
    steps = read_steps(source)
    try:
        return _carry_out(FanOut(steps.specs, order), view, quiet=quiet)
    except InvalidArgument as error:
        raise steps.located(error) from None


def start(source: str, order: Order, *, as_json: bool) -> None:
    """Start the steps in `source` as a run that goes on by itself, and print its job's id.

    Raises:
        InvalidArgument: a step is wrong; nothing was started.
        FailedPrecondition: the mesh has no journal or no job registry.
        Unavailable: the mesh or its registry cannot be reached.
    """
    steps = read_steps(source)

    async def ask() -> StartedRun:
        async with connected(order.server) as mesh:
            return await mesh.start(
                steps.specs,
                workflow_id=order.workflow_id,
                budget_tokens=order.budget_tokens,
                request_id=order.request_id,
            )

    try:
        run = run_interruptibly(ask())
    except InvalidArgument as error:
        raise steps.located(error) from None
    show_started(run, as_json=as_json)


def resume(order: Order, view: View, *, quiet: bool) -> bool:
    """As `parallel`, with the steps that the workflow was last asked for.

    Raises, besides:
        NotFound: no fan-out of that workflow is kept.
    """
    return _carry_out(FanOut(None, order), view, quiet=quiet)


def _carry_out(fan_out: FanOut, view: View, *, quiet: bool) -> bool:
    try:
        outcomes: Sequence[StepOutcome] = run_interruptibly(fan_out.run(quiet=quiet), fan_out.tell_cancelling)
    except Exception as error:
        if fan_out.has_begun:
            _show(fan_out, fan_out.outcomes_so_far(error), view, quiet=quiet)
            if isinstance(error, Interrupted) and not fan_out.has_ended:
                tell("Nobody has said that the steps are gone.", "red")
        raise
    _show(fan_out, outcomes, view, quiet=quiet)
    return all(outcome.success for outcome in outcomes)


def _show(fan_out: FanOut, outcomes: Sequence[StepOutcome], view: View, *, quiet: bool) -> None:
    show_outcomes(outcomes, view, fan_out.budget, fan_out.error)
    if fan_out.error:
        tell(f"The run has not completed: {fan_out.error}.", "red")
    if not quiet:
        tell(summary(outcomes, fan_out.budget))
        fan_out.tell_records()


class FanOut:
    """A run of some steps, with progress shown. What came of them stays readable, however it ends.

    `specs` None means those that the order's workflow was last asked for.
    """

    def __init__(self, specs: Sequence[AgentStepSpec] | None, order: Order) -> None:
        self._specs = specs
        self._order = order
        self._run: ParallelRun | None = None
        self._tally = Tally(
            len(specs or ()), waiting_on=self._waiting_on, budget=lambda: self.budget, recalled=self._recalled
        )

    @property
    def has_begun(self) -> bool:
        """Whether a coordinator has accepted it."""
        return self._run is not None and bool(self._run.run_id)

    @property
    def has_ended(self) -> bool:
        """Whether the mesh has told its end."""
        return self._run is not None and self._run.has_ended

    @property
    def budget(self) -> Budget | None:
        """The run's budget as it was last told, if it has one."""
        return self._run.budget if self._run else None

    @property
    def error(self) -> str:
        """Why the run has not completed though its steps have ended, if so."""
        return self._run.error if self._run else ""

    async def run(self, *, quiet: bool = False) -> ParallelResult:
        """Run it, once. Cancelling this cancels the steps and waits until they are gone."""
        async with connected(self._order.server) as mesh:
            self._run = self._begin(mesh, None if quiet else self._note)
            async with nullcontext() if quiet else shown(self._tally):
                return await self._run

    def _begin(self, mesh: Mesh, on_event: OnStepEvent | None) -> ParallelRun:
        order = self._order
        budget, request_id = order.budget_tokens, order.request_id
        if self._specs is None:
            return mesh.resume(order.workflow_id, budget_tokens=budget, on_event=on_event, request_id=request_id)
        if order.workflow_id:
            return mesh.parallel_resumable(
                self._specs, order.workflow_id, budget_tokens=budget, on_event=on_event, request_id=request_id
            )
        return mesh.parallel(self._specs, budget_tokens=budget, on_event=on_event, request_id=request_id)

    def outcomes_so_far(self, broken_off: Exception) -> list[StepOutcome]:
        """What has come of a run that has begun, in order; of a step that has not ended, if it is known, why not."""
        assert self._run is not None
        if self._specs is None:
            return [outcome for outcome in self._run.outcomes if outcome is not None]
        failure = _failure(broken_off)
        return [
            outcome or StepOutcome(task_id=spec.task_id, agent=spec.agent, success=False, failure=failure)
            for spec, outcome in zip(self._specs, self._run.outcomes, strict=True)
        ]

    def tell_cancelling(self) -> None:
        """Say that it is being cancelled, which takes as long as its steps take to be gone."""
        if self.has_begun:
            tell("Cancelling; waiting until the steps are gone ...")

    def tell_records(self) -> None:
        """Say of a resumable run which steps were not run again, and how those are run that have no record."""
        run, order = self._run, self._order
        assert run is not None
        if run.recalled:
            tell(f"Resumed: {len(run.recalled):,} of {len(run.outcomes):,} steps were recorded before.")
        recorded = sum(outcome is not None and outcome.success for outcome in run.outcomes)
        if order.workflow_id and recorded < len(run.outcomes):
            words = ["fanfold", "resume", order.workflow_id, *(["--server", order.server] if order.server else [])]
            tell(f"{recorded:,} of {len(run.outcomes):,} steps are recorded; go on with: {shlex.join(words)}")

    def _note(self, event: StepEvent) -> None:
        assert self._run is not None
        if not self._tally.total:  # of those that were asked for before, the mesh tells how many there are
            self._tally.total = len(self._run.outcomes)
        self._tally.note(event)

    def _waiting_on(self) -> str:
        return self._run.waiting_on if self._run else ""

    def _recalled(self) -> Collection[str]:
        return self._run.recalled if self._run else ()


def _failure(broken_off: Exception) -> StepFailure:
    match broken_off:
        case Interrupted():
            code, why = FailureCode.CANCELLED, "interrupted"
        case Cancelled():
            code, why = FailureCode.CANCELLED, broken_off.message
        case Unavailable():
            code, why = FailureCode.NODE_LOST, broken_off.message
        case _:
            code, why = FailureCode.INTERNAL, str(broken_off)
    return StepFailure(code=code, message=f"not finished: {why}")
