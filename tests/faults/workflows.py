"""Journaled runs under faults: what they are asked for, and what their callers and the journal tell of them."""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fanfold import Mesh
from fanfold.errors import FanfoldError
from fanfold.model.pipeline import StageContext
from fanfold.model.run import Budget, PipelineEvent, RunEvent, RunStepEvent
from fanfold.model.step import StepEnded, StepEvent, StepOutcome
from faults.checker import History
from faults.journal_checker import Asked, JournalHistory, Sighting
from faults.load import AGENTS, MAX_TOKENS, SPENDERS, Load
from faults.storms import StormyMesh

LOOK_SECONDS = 0.1
"""Pause between two looks at the records."""

FAN_OUT_STEPS = 16
ITEMS, STAGES = 4, 2
STAGE_TIMEOUT = 120.0
"""Longer than any storm: a caller that is cut off must not be taken for a stage that hangs."""


class Workflow(ABC):
    """A run with a workflow id, carried out once."""

    def __init__(self, workflow_id: str, load: Load, limit: int | None = None) -> None:
        self.workflow_id = workflow_id
        self.load = load
        self.limit = limit
        self.outcomes: Sequence[StepOutcome | None] = ()
        self.asked: list[Asked] = []
        self._budget: Budget | None = None
        self._run_id = ""
        self._heard: list[Sighting] = []
        self._events: list[StepEvent] = []
        self._records: list[Sighting] = []

    @abstractmethod
    async def carry_out(self, mesh: Mesh) -> None:
        """Run it to its end."""

    @abstractmethod
    def last_of_each(self, outcomes: Sequence[StepOutcome]) -> Sequence[StepOutcome]:
        """Of the outcomes of all steps, those that its caller is given in the end."""

    async def resume(self, mesh: Mesh) -> list[str]:
        """Go on with what has failed, if anything has; complaints about what that came to."""
        return []

    async def watch_records(self, mesh: Mesh) -> None:
        """Look at its records again and again, whenever a coordinator can be asked, until cancelled."""
        seen: set[str] = set()
        while True:
            try:
                async with asyncio.timeout(5):
                    checkpoint = await mesh.checkpoint(self.workflow_id)
            except (FanfoldError, TimeoutError):
                pass
            else:
                now = time.monotonic()
                new = [record.outcome for record in checkpoint.records if record.outcome.output not in seen]
                self._records += [Sighting(now, outcome.task_id, outcome.output) for outcome in new]
                seen |= {outcome.output for outcome in new}
            await asyncio.sleep(LOOK_SECONDS)

    async def history(self, stormy: StormyMesh) -> JournalHistory:
        """All that is known of it, once it has ended."""
        mesh = stormy.client
        kept: list[RunEvent] = [event async for event in mesh.watch(self._run_id)]
        ended = {event.task_id: event.outcome for event in self._events if isinstance(event, StepEnded)}
        outcomes = [ended[task_id] for task_id in self.load.task_ids if task_id in ended]
        claims = [claim for one in stormy.coordinators for claim in one.claims()]
        return JournalHistory(
            steps=History(
                task_ids=self.load.task_ids,
                outcomes=outcomes,
                events=self._events,
                executions=self.load.executions(),
                freezes=[span for node in stormy.nodes for span in node.freezes],
                drains=[span for node in stormy.nodes for span in node.drains],
                losses=stormy.losses,
                expiries=stormy.expiries,
                takeovers=[at for at, run_id in claims if run_id == self._run_id],
                budget=self._budget,
                needs={each["task_id"]: MAX_TOKENS for each in self.load.steps if each["agent"] in SPENDERS},
            ),
            given=self.outcomes,
            expected=self.last_of_each(outcomes),
            asked=self.asked,
            run_id=self._run_id,
            heard=self._heard,
            records=self._records,
            runs=await mesh.runs(workflow_id=self.workflow_id),
            kept=kept,
        )

    def saw_records(self) -> bool:
        """Whether records were seen while it went on."""
        return bool(self._records)

    def _hear(self, event: StepEvent) -> None:
        self._events.append(event)
        if isinstance(event, StepEnded) and event.outcome.success:
            self._heard.append(Sighting(time.monotonic(), event.task_id, event.outcome.output))


class FanOut(Workflow):
    """A resumable fan-out."""

    async def carry_out(self, mesh: Mesh) -> None:
        """Run it to its end."""
        run = mesh.parallel_resumable(self.load.steps, self.workflow_id, budget_tokens=self.limit, on_event=self._hear)
        result = await run
        self._run_id, self.outcomes, self._budget = run.run_id, result.outcomes, result.budget

    def last_of_each(self, outcomes: Sequence[StepOutcome]) -> Sequence[StepOutcome]:
        """All of them."""
        return outcomes

    async def resume(self, mesh: Mesh) -> list[str]:
        """Run with a larger budget what was refused, if anything was; complaints about what that came to (F7)."""
        if self.limit is None or all(outcome.success for outcome in self.outcomes if outcome):
            return []
        before = {execution.name for execution in self.load.executions()}
        steps, limit = self.load.steps, self.limit + MAX_TOKENS * len(self.load.steps)
        result = await mesh.parallel_resumable(steps, self.workflow_id, budget_tokens=limit)
        again = {execution.task_id for execution in self.load.executions() if execution.name not in before}
        found = []
        for former, outcome in zip(self.outcomes, result, strict=True):
            assert former is not None
            if former.success and (outcome != former or former.task_id in again):
                found.append(f"{former.task_id} was recorded and came to {outcome} when it was resumed")
            if not outcome.success:
                found.append(f"{former.task_id} failed when it was resumed: {outcome.failure}")
        return found


class Pipeline(Workflow):
    """A pipeline with a workflow id. Its steps are those of the load, stage by stage for each item."""

    async def carry_out(self, mesh: Mesh) -> None:
        """Run it to its end."""
        stages = [self._ask] * STAGES
        run = mesh.pipeline(
            range(len(self.load.steps) // STAGES),
            stages,
            workflow_id=self.workflow_id,
            stage_timeout=STAGE_TIMEOUT,
            on_event=self._hear_of_item,
        )
        result = await run
        self._run_id, self.outcomes, self._budget = run.run_id, result.outcomes, result.budget
        assert not result.failures, result.failures

    def last_of_each(self, outcomes: Sequence[StepOutcome]) -> Sequence[StepOutcome]:
        """Those of the last stage."""
        return outcomes[STAGES - 1 :: STAGES]

    def _ask(self, ctx: StageContext) -> dict[str, Any]:
        number: int = ctx.item * STAGES + ctx.stage
        before = self.load.task_ids[number - 1] if ctx.stage else ""
        self.asked.append(Asked(before, ctx.previous.output if ctx.previous else ""))
        return self.load.steps[number]

    def _hear_of_item(self, event: PipelineEvent) -> None:
        if isinstance(event, RunStepEvent):
            self._hear(event.event)


def drawn(draw: random.Random, name: str, folder: Path) -> list[Workflow]:
    """The runs of one storm: a fan-out, every second time with a budget, and a pipeline."""
    fan_out, pipeline = Load(folder / f"fan-out-{name}"), Load(folder / f"pipeline-{name}")
    has_budget = draw.random() < 0.5
    fan_out.add_some(draw, FAN_OUT_STEPS, [*AGENTS, *SPENDERS, *SPENDERS] if has_budget else AGENTS)
    pipeline.add_some(draw, ITEMS * STAGES)
    most = MAX_TOKENS * sum(step["agent"] in SPENDERS for step in fan_out.steps)
    limit = round(most * draw.choice([0.7, 1.0, 3.0])) if has_budget else None
    return [FanOut(f"fan-out-{name}", fan_out, limit), Pipeline(f"pipeline-{name}", pipeline)]
