"""`fanfold runs watch`: a run's events, as they happen."""

from __future__ import annotations

from contextlib import aclosing

from fanfold.cli.connection import connected
from fanfold.cli.exits import Interrupted
from fanfold.cli.interruption import run_interruptibly
from fanfold.cli.outcomes import spent_of
from fanfold.cli.output import lasted, show_json_line, show_text, tell
from fanfold.cli.printable import first_line, printable
from fanfold.cli.run_view import SHORT_ID, steps_in_words
from fanfold.cli.runs import find_run
from fanfold.model.run import (
    BudgetExhausted,
    EventDetail,
    LogLine,
    PhaseStarted,
    Run,
    RunEnded,
    RunEvent,
    RunStarted,
    RunState,
    RunStepEvent,
    StageFailed,
    StepChanged,
    WaitingChanged,
)
from fanfold.model.run_form import run_event_to_json
from fanfold.model.step import StepEnded, StepEvent, StepOutcome, StepStarted


def watch_run(server: str | None, prefix: str, *, first: int, as_json: bool) -> bool:
    """Print a run's events from number `first` on, until it has ended. Whether all went well with it.

    Raises:
        NotFound: there is no such run.
        Interrupted: by a signal; the run goes on.
    """
    watching = _Watching(first, as_json=as_json)
    try:
        ended = run_interruptibly(watching.follow(server, prefix))
    except Interrupted:
        if watching.following:
            tell(f"The run goes on; go on watching with: fanfold runs watch {prefix} --from {watching.following}")
        raise
    return ended is not None and ended.state is RunState.COMPLETED and not ended.steps.failed


class _Watching:
    """Prints what is told, and knows where to go on. `following` is the number of the event that comes next."""

    def __init__(self, first: int, *, as_json: bool) -> None:
        self.following = first
        self._as_json = as_json

    async def follow(self, server: str | None, prefix: str) -> Run | None:
        """The run as it ended; None if its end was told before."""
        async with connected(server) as mesh:
            run = await find_run(mesh, prefix)
            watched = mesh.watch(run.run_id, from_sequence=self.following, detail=EventDetail.LIFECYCLE)
            async with aclosing(watched) as events:
                async for event in events:
                    self._show(event)
                    if isinstance(event, RunEnded):
                        return event.run
            return await mesh.run(run.run_id)

    def _show(self, event: RunEvent) -> None:
        self.following = event.sequence + 1
        if self._as_json:
            show_json_line(run_event_to_json(event))
        else:
            show_text([f"{event.sequence:>6}  {event.time.astimezone():%H:%M:%S}  {printable(_in_words(event))}"])


def _in_words(event: RunEvent) -> str:
    match event:
        case RunStarted():
            return f"{event.run_id[:SHORT_ID]} started: {event.total_steps:,} steps"
        case RunStepEvent():
            return _step_in_words(event.event, recalled=event.recalled)
        case StageFailed():
            return f"item {event.index}, stage {event.stage} failed: {event.error}"
        case StepChanged():
            return f"{event.key} runs again: {event.reason}"
        case BudgetExhausted():
            return f"the budget has no room for further steps: {spent_of(event.budget)}"
        case PhaseStarted() | LogLine():
            return f"phase {event.title}" if isinstance(event, PhaseStarted) else f"log: {event.message}"
        case WaitingChanged():
            return f"waiting for {event.waiting_on}" if event.waiting_on else "waiting no more"
        case RunEnded():
            why = event.error or event.run.reason
            return f"run {event.run.state}: {steps_in_words(event.run.steps)}" + (f" ({why})" if why else "")


def _step_in_words(event: StepEvent, *, recalled: bool) -> str:
    match event:
        case StepStarted():
            where = f" on {event.node}" if event.node else ""
            return f"{event.task_id} is recorded" if recalled else f"{event.task_id} started{where}"
        case StepEnded():
            return f"{event.task_id} {_outcome_in_words(event.outcome)}" + (", recorded before" if recalled else "")
        case _:
            return f"{event.task_id} goes on"


def _outcome_in_words(outcome: StepOutcome) -> str:
    if outcome.failure is not None:
        return f"{outcome.failure.code}: {first_line(outcome.failure.message)}"
    if outcome.started_at is None or outcome.ended_at is None:
        return "ok"
    return f"ok, took {lasted(outcome.ended_at - outcome.started_at)}"
