"""`fanfold parallel`: runs the steps of a file and prints what came of them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import nullcontext

from fanfold.cli.connection import connected
from fanfold.cli.exits import Interrupted
from fanfold.cli.interruption import run_interruptibly
from fanfold.cli.outcomes import View, show_outcomes, summary
from fanfold.cli.output import tell
from fanfold.cli.progress import Tally, shown
from fanfold.cli.specs import read_steps
from fanfold.errors import Aborted, Cancelled, FanfoldError, InvalidArgument, Unavailable
from fanfold.model.run import Budget, ParallelResult
from fanfold.model.step import AgentStepSpec, FailureCode, StepFailure, StepOutcome
from fanfold.sdk.mesh import Mesh
from fanfold.sdk.parallel import ParallelRun

CLEAN_UP_SECONDS = 30.0
"""Longest wait for a cancelled run to be gone: more than a coordinator takes."""

_ASK_AGAIN_SECONDS = 0.05


def parallel(source: str, *, server: str | None, view: View, quiet: bool, budget_tokens: int | None = None) -> bool:
    """Run the steps in `source` and print their outcomes. Whether all of them succeeded.

    A run that has begun and is broken off is printed too, with what had come of it until then.

    Raises:
        InvalidArgument: a step is wrong; nothing was started.
        Unavailable: the mesh cannot be reached, or was lost.
        Interrupted: by a signal; the run was cancelled.
    """
    steps = read_steps(source)
    fan_out = FanOut(steps.specs, budget_tokens)
    try:
        outcomes: Sequence[StepOutcome] = run_interruptibly(fan_out.run(server=server, quiet=quiet))
    except InvalidArgument as error:
        raise steps.located(error) from None
    except Exception as error:
        if fan_out.has_begun:
            _show(fan_out.outcomes_so_far(error), fan_out.budget, view, quiet=quiet)
        raise
    _show(outcomes, fan_out.budget, view, quiet=quiet)
    return all(outcome.success for outcome in outcomes)


def _show(outcomes: Sequence[StepOutcome], budget: Budget | None, view: View, *, quiet: bool) -> None:
    show_outcomes(outcomes, view, budget)
    if not quiet:
        tell(summary(outcomes, budget))


class FanOut:
    """A run of some steps, with progress shown. What came of them stays readable, however it ends.

    `budget_tokens` is what they may spend together, None for as much as they like.
    """

    def __init__(self, specs: Sequence[AgentStepSpec], budget_tokens: int | None = None) -> None:
        self._specs = specs
        self._budget_tokens = budget_tokens
        self._run: ParallelRun | None = None

    @property
    def has_begun(self) -> bool:
        """Whether a coordinator has accepted it."""
        return self._run is not None and bool(self._run.run_id)

    @property
    def budget(self) -> Budget | None:
        """The run's budget as it was last told, if it has one."""
        return self._run.budget if self._run else None

    async def run(self, *, server: str | None, quiet: bool = False) -> ParallelResult:
        """Run it, once. Cancelling this cancels the steps and waits until they are gone."""
        tally = Tally(len(self._specs), self._waiting_on, lambda: self.budget)
        request_id = f"cli-{uuid.uuid4().hex}"
        async with connected(server) as mesh:
            self._run = mesh.parallel(
                self._specs,
                on_event=None if quiet else tally.note,
                request_id=request_id,
                budget_tokens=self._budget_tokens,
            )
            try:
                async with nullcontext() if quiet else shown(tally):
                    return await self._run
            except asyncio.CancelledError:
                tell("Cancelling; waiting until the steps are gone ...")
                await _gone(mesh, request_id)
                raise

    def _waiting_on(self) -> str:
        return self._run.waiting_on if self._run else ""

    def outcomes_so_far(self, broken_off: Exception) -> list[StepOutcome]:
        """An outcome for every step of a run that has begun, in order; of one that has not ended, why it will not."""
        assert self._run is not None
        failure = _failure(broken_off)
        return [
            outcome or StepOutcome(task_id=spec.task_id, agent=spec.agent, success=False, failure=failure)
            for spec, outcome in zip(self._specs, self._run.outcomes, strict=True)
        ]


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


async def _gone(mesh: Mesh, request_id: str) -> None:
    """Wait until the run of that request is gone: as long as it is not, a second one with its id is refused."""
    try:
        async with asyncio.timeout(CLEAN_UP_SECONDS):
            while True:
                try:
                    await mesh.parallel([], request_id=request_id)
                except Aborted:
                    await asyncio.sleep(_ASK_AGAIN_SECONDS)
                else:
                    return
    except TimeoutError:
        tell(f"The mesh has not cleaned up within {CLEAN_UP_SECONDS:g} s; its log says more.", "red")
    except FanfoldError as error:
        tell(f"Nobody can say whether the steps are gone: {error.message}", "red")
