"""Items through stages, each item on its own: no barrier (C14, C15)."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from coordinator.combinators.runner import StepKey, StepRunner, run_to_end, runner_of
from coordinator.combinators.workers import Slots, Workers
from fanfold.model.pipeline import STAGE_TIMEOUT, Stage, StageContext, StageFailure
from fanfold.model.run import PipelineEvent, RunStepEvent, StageFailed
from fanfold.model.step import AgentStepSpec, StepEvent, StepOutcome, StepProgressed
from fanfold.ports import AgentExecutor
from fanfold.stages import StageCalls

LEAST_AHEAD = 8
MOST_AHEAD = 256
"""Bounds of how many items are under way beyond the hint."""

Ask = Callable[[int, int, StepOutcome | None], Awaitable[AgentStepSpec | None]]
"""Gives an item's next step, by the positions of item and stage and the outcome before; None ends the item's chain.

It raises StageFailure for a stage that failed, and nothing else of its own.
"""

OnStageEvent = Callable[[int, int, StepEvent], None]
"""Takes the positions of item and stage, and what happened to its step; must not block and must not raise."""

OnStageFailed = Callable[[int, int, str], None]
"""Takes the positions of item and stage, and why the stage failed; must not block and must not raise."""

OnResult = Callable[[int, StepOutcome | None], None]
"""Takes an item's position and its last outcome, None if it had no step; must not block and must not raise."""

BeginAt = Callable[[int], tuple[int, StepOutcome | None]]
"""Says at which stage an item begins and with which outcome before it; the number of stages means that it is done."""


async def pipeline(
    executor: AgentExecutor,
    items: Sequence[Any],
    stages: Sequence[Stage],
    on_event: Callable[[PipelineEvent], None] | None = None,
    stage_timeout: float = STAGE_TIMEOUT,
) -> list[StepOutcome | None]:
    """Run each item through the stages; at its place is its last outcome, or None if its first stage gave none (C14).

    A stage is a plain function, called in a thread with a StageContext, that gives the item's next step; None and a
    failed step end the item's chain. A stage that raises, gives what is no step, or has not returned within
    `stage_timeout` seconds ends the chain too, and is told to `on_event` as StageFailed (C15). As many steps are in
    flight as the executor hints, at least one; the number follows the hint (C10).

    Raises:
        TypeError: a stage is no plain function; nothing was started.
        InvalidArgument: there is no stage, or the timeout is none; nothing was started.
        asyncio.CancelledError: this call was cancelled; so were its steps, and they are gone.
    """
    results: list[StepOutcome | None] = [None] * len(items)
    told = _Told(on_event) if on_event else None
    with StageCalls(stages, stage_timeout) as calls:

        async def ask(index: int, stage: int, previous: StepOutcome | None) -> AgentStepSpec | None:
            return await calls.begin(StageContext(items[index], previous, index, stage))

        await chains(
            runner_of(executor),
            range(len(items)),
            len(stages),
            ask,
            on_event=told.step if told else None,
            on_stage_failed=told.stage_failed if told else None,
            on_result=results.__setitem__,
        )
    return results


class _Told:
    """Tells a pipeline's events, numbered from 1; a step's progress has no number."""

    def __init__(self, listener: Callable[[PipelineEvent], None]) -> None:
        self._listener = listener
        self._numbers = itertools.count(1)

    def step(self, index: int, stage: int, event: StepEvent) -> None:
        number = 0 if isinstance(event, StepProgressed) else next(self._numbers)
        self._listener(RunStepEvent(sequence=number, time=event.time, index=index, stage=stage, event=event))

    def stage_failed(self, index: int, stage: int, error: str) -> None:
        now = datetime.now(UTC)
        self._listener(StageFailed(sequence=next(self._numbers), time=now, index=index, stage=stage, error=error))


async def chains(
    runner: StepRunner,
    items: Iterable[int],
    stages: int,
    ask: Ask,
    *,
    on_event: OnStageEvent | None,
    on_stage_failed: OnStageFailed | None,
    on_result: OnResult,
    begin_at: BeginAt = lambda _index: (0, None),
) -> None:
    """As `pipeline`, for callers that answer for the stages in a way of their own and need not hold all results.

    `items` are the positions of the items, in the order in which they are begun; `begin_at` has each go on from where
    its records end. Some more of them are under way than steps are in flight, so that a chain that waits for its answer
    leaves no slot idle.
    """
    slots = Slots(runner.concurrency_hint)

    async def run(index: int) -> None:
        stage, previous = begin_at(index)
        task_ids: set[str] = set()
        while stage < stages:
            try:
                spec = await ask(index, stage, previous)
                if spec is None:
                    break
                _refuse_twice(spec, task_ids)
            except StageFailure as failure:
                if on_stage_failed is not None:
                    on_stage_failed(index, stage, failure.error)
                break
            async with slots:
                listener = partial(on_event, index, stage) if on_event else None
                previous = await run_to_end(runner, StepKey.of_stage(index, stage), spec, listener)
            if not previous.success:
                break
            stage += 1
        on_result(index, previous)

    await Workers(items, run, lambda: _under_way(runner.concurrency_hint())).run()


def _under_way(hint: int) -> int:
    return hint + min(max(hint, LEAST_AHEAD), MOST_AHEAD)


def _refuse_twice(spec: AgentStepSpec, task_ids: set[str]) -> None:
    if spec.task_id in task_ids:
        raise StageFailure(f"step.task_id: {spec.task_id!r} is already the task id of another step of this item")
    task_ids.add(spec.task_id)
