"""`fanfold runs`: the runs that a mesh knows, listed, shown and cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import aclosing
from dataclasses import dataclass, field

from fanfold.cli.connection import connected
from fanfold.cli.interruption import run_interruptibly
from fanfold.cli.outcomes import full_output
from fanfold.cli.output import show_document, show_json, show_table, show_text, tell
from fanfold.cli.run_view import SHORT_ID, has_ended, run_in_words, run_table, steps_in_words
from fanfold.errors import FailedPrecondition, InvalidArgument, NotFound, OutOfRange
from fanfold.model.run import EventDetail, Run, RunEnded, RunStepEvent
from fanfold.model.run_form import run_to_json
from fanfold.model.step import StepEnded, StepOutcome
from fanfold.model.validation import outcome_to_json
from fanfold.sdk.mesh import Mesh

TAIL_LINES = 10
"""Lines of a failed step's output that are shown."""

_MAX_CANDIDATES_TOLD = 5
_CANCEL_SECONDS = 30.0
_LOOK_SECONDS = 0.1
_RECONNECT_SECONDS = 10.0


def list_runs(server: str | None, *, workflow_id: str, states: Collection[str], limit: int, as_json: bool) -> None:
    """Print runs, newest first."""

    async def ask() -> list[Run]:
        async with connected(server) as mesh:
            return await mesh.runs(workflow_id=workflow_id, states=states, limit=limit + 1)

    found = run_interruptibly(ask())
    runs = found[:limit]
    if as_json:
        show_json("runs", map(run_to_json, runs))
        return
    show_table(run_table(runs))
    if len(found) > limit:
        tell(f"These are the newest {limit:,}; --limit shows more.")
    elif not runs:
        tell("There are no such runs.")


def show_run(server: str | None, prefix: str, *, task_id: str, as_json: bool) -> None:
    """Print how a run fares and which of its steps failed, or with `task_id` what came of that step.

    Raises:
        NotFound: there is no such run, or it has no such step, or that has not ended.
    """

    async def ask() -> _Findings:
        async with connected(server, reconnect_timeout=_RECONNECT_SECONDS) as mesh:
            return await _findings(mesh, await find_run(mesh, prefix), task_id)

    found = run_interruptibly(ask())
    if task_id:
        if not found.outcomes:
            raise NotFound(f"no step {task_id!r} of the run has ended")
        if as_json:
            show_document({"run": run_to_json(found.run), "outcome": outcome_to_json(found.outcomes[-1])})
        else:
            show_text(full_output(found.outcomes[-1]))
        return
    if as_json:
        show_document({"run": run_to_json(found.run), "failed": [outcome_to_json(each) for each in found.outcomes]})
        return
    show_text(run_in_words(found.run))
    for outcome in found.outcomes:
        show_text(full_output(outcome, tail=TAIL_LINES))
    if found.remark:
        tell(found.remark)


def cancel_run(server: str | None, prefix: str, reason: str) -> None:
    """Have a run cancelled, and wait until nothing of it is left. Raises NotFound if there is no such run."""

    async def ask() -> tuple[Run, Run | None]:
        async with connected(server) as mesh:
            run = await find_run(mesh, prefix)
            if has_ended(run):
                return run, run
            await mesh.cancel(run.run_id, reason)
            return run, await _until_ended(mesh, run.run_id)

    before, after = run_interruptibly(ask())
    name = before.run_id[:SHORT_ID]
    if has_ended(before):
        tell(f"{name} has ended already: {before.state}.")
    elif after is None:
        tell(f"{name} is being cancelled; its steps are not gone yet.")
    else:
        tell(f"{name} {after.state}: {steps_in_words(after.steps)}.")


async def find_run(mesh: Mesh, prefix: str) -> Run:
    """The run whose id begins so, with "run-" or without.

    Raises:
        NotFound: there is none.
        InvalidArgument: there are several.
    """
    wanted = prefix if prefix.startswith("run-") else f"run-{prefix}"
    try:
        return await mesh.run(wanted)
    except NotFound:
        found = [run for run in await mesh.runs() if run.run_id.startswith(wanted)]
    if not found:
        raise NotFound(f"there is no run {prefix!r}; `fanfold runs list` shows those that there are")
    if len(found) > 1:
        some = ", ".join(run.run_id for run in found[:_MAX_CANDIDATES_TOLD])
        raise InvalidArgument(f"{len(found):,} runs begin with {prefix!r}: {some}")
    return found[0]


@dataclass(slots=True)
class _Findings:
    """A run, outcomes of some of its steps, and what has to be said of them."""

    run: Run
    outcomes: list[StepOutcome] = field(default_factory=list)
    remark: str = ""


async def _findings(mesh: Mesh, run: Run, task_id: str) -> _Findings:
    """The outcome of one step, or without `task_id` those of the failed ones."""
    found = _Findings(run)
    told, left = 0, run.steps.succeeded + run.steps.failed
    outcomes: dict[tuple[int, int], StepOutcome] = {}
    try:
        async with aclosing(mesh.watch(run.run_id, detail=EventDetail.OUTCOMES)) as events:
            while told < left or has_ended(found.run):
                event = await anext(events, None)
                if event is None or isinstance(event, RunEnded):
                    break
                if isinstance(event, RunStepEvent) and isinstance(event.event, StepEnded):
                    told += 1
                    outcome = event.event.outcome
                    if outcome.task_id == task_id or (not task_id and not outcome.success):
                        outcomes[event.index, event.stage] = outcome
    except (FailedPrecondition, OutOfRange) as error:
        found.remark = f"What came of its steps is not known: {error.message}."
    found.outcomes = [outcomes[place] for place in sorted(outcomes)]
    return found


async def _until_ended(mesh: Mesh, run_id: str) -> Run | None:
    """The run as it ended; None if it does not in time, or is not kept."""
    try:
        async with asyncio.timeout(_CANCEL_SECONDS):
            while True:
                run = await mesh.run(run_id)
                if has_ended(run):
                    return run
                await asyncio.sleep(_LOOK_SECONDS)
    except (TimeoutError, NotFound):
        return None
