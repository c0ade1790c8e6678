"""What a journaled run's steps pass before they are begun."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from coordinator.combinators.runner import StepKey, StepRunner
from coordinator.journal.journal import Fenced, JournalFailed
from coordinator.waiting import WaitsOn
from fanfold.errors import Aborted
from fanfold.model.step import AgentStepSpec, StepOutcome
from fanfold.ports import OnStepEvent

if TYPE_CHECKING:
    from coordinator.runs.journaled import JournaledRun


class Gate:
    """A runner that begins no further step while the run's caller or journal is away, or that lags behind (F15)."""

    def __init__(self, runner: StepRunner, run: JournaledRun) -> None:
        self._runner = runner
        self._run = run

    def concurrency_hint(self) -> int:
        """The runner's."""
        return self._runner.concurrency_hint()

    async def run_step(self, key: StepKey, spec: AgentStepSpec, on_event: OnStepEvent | None) -> StepOutcome:
        """Run the step, when it may begin."""
        try:
            await self._until_open(key)
            return await self._runner.run_step(key, spec, on_event)
        except (Aborted, JournalFailed) as error:  # no fault of the step: the run cannot go on here (C17)
            self._run.move(error if isinstance(error, JournalFailed) else Fenced())
            raise asyncio.CancelledError from error

    async def _until_open(self, key: StepKey) -> None:
        run, waiting, hold = self._run, self._run.scope.waiting, self._run.scope.hold
        presence = run.presence
        if presence is not None and not presence.is_here() and key.name not in run.scope.adopted:
            with waiting.step(), waiting.on(WaitsOn.CALLER, "its caller, who is away"):
                await presence.wait()
        if run.log.is_heavy() or not hold.is_certain():
            with waiting.step(), waiting.on_journal():
                await run.log.room()
                await hold.until_certain()
