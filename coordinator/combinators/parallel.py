"""The fan-out with a barrier (C12)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from coordinator.life import StepLife, failed
from fanfold.errors import FieldViolation, InvalidArgument
from fanfold.model.step import AgentStepSpec, FailureCode, StepEvent, StepOutcome
from fanfold.ports import AgentExecutor

HINT_INTERVAL = 0.2
"""Seconds between two looks at the executor's hint, for when it grows while every worker is busy."""

OnIndexedEvent = Callable[[int, StepEvent], None]
"""Takes a step's position in the input, from 0, and its event; must not block and must not raise."""

OnIndexedOutcome = Callable[[int, StepOutcome], None]
"""Takes a step's position in the input, from 0, and its outcome; must not block and must not raise."""

_log = logging.getLogger(__name__)


async def parallel(
    executor: AgentExecutor, specs: Sequence[AgentStepSpec], on_event: OnIndexedEvent | None = None
) -> list[StepOutcome]:
    """Run all steps and wait for all of them; outcomes are in the order of `specs` (C12).

    As many steps are in flight as the executor hints, at least one; the number follows the hint while the run lasts
    (C10). A step that goes wrong in any way is a failed outcome at its place and touches no sibling.

    Raises:
        InvalidArgument: a task id is given twice; nothing was started.
        asyncio.CancelledError: this call was cancelled; so were its steps, and they are gone.
    """
    outcomes: dict[int, StepOutcome] = {}
    await fan_out(executor, specs, on_event, outcomes.__setitem__)
    return [outcomes[index] for index in range(len(specs))]


async def fan_out(
    executor: AgentExecutor,
    specs: Sequence[AgentStepSpec],
    on_event: OnIndexedEvent | None,
    on_outcome: OnIndexedOutcome,
) -> None:
    """As `parallel`, for callers that take each outcome as it comes and need not hold them all."""
    refuse_duplicates(specs)
    await _FanOut(executor, specs, on_event, on_outcome).run()


def refuse_duplicates(specs: Sequence[AgentStepSpec], *, path: str = "steps") -> None:
    """Raise InvalidArgument naming every task id that is given twice (C12, F20)."""
    first_at: dict[str, int] = {}
    violations = [
        FieldViolation(f"{path}[{index}].task_id", f"{spec.task_id!r} is already the task id of {path}[{first}]")
        for index, spec in enumerate(specs)
        if (first := first_at.setdefault(spec.task_id, index)) != index
    ]
    if violations:
        raise InvalidArgument(violations=violations)


class _FanOut:
    """A fixed set of worker tasks, each taking the next step: far cheaper than a task for each of 100,000 steps."""

    def __init__(
        self,
        executor: AgentExecutor,
        specs: Sequence[AgentStepSpec],
        on_event: OnIndexedEvent | None,
        on_outcome: OnIndexedOutcome,
    ) -> None:
        self._executor = executor
        self._specs = specs
        self._on_event = on_event
        self._on_outcome = on_outcome
        self._next: Iterator[int] = iter(range(len(specs)))
        self._workers = 0
        self._all_taken = asyncio.Event()
        if not specs:
            self._all_taken.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while not self._all_taken.is_set():
                for _ in range(min(len(self._specs), self._wanted()) - self._workers):
                    self._workers += 1
                    tasks.create_task(self._work())
                await _wait(self._all_taken, HINT_INTERVAL)

    def _wanted(self) -> int:
        return max(1, self._executor.concurrency_hint())

    async def _work(self) -> None:
        try:
            while self._workers <= self._wanted():
                index = next(self._next, None)
                if index is None:
                    self._all_taken.set()
                    return
                self._on_outcome(index, await self._run_step(index))
        finally:
            self._workers -= 1

    async def _run_step(self, index: int) -> StepOutcome:
        spec = self._specs[index]
        life = StepLife(spec, partial(self._on_event, index) if self._on_event else None)
        try:
            outcome = await self._executor.execute_step(spec, life.tell if self._on_event else None)
        except Exception as error:  # whatever an executor raises must not touch the siblings (C12)
            _log.exception("the executor raised for a step")
            message = f"the executor raised {type(error).__name__}"
            outcome = failed(spec, FailureCode.INTERNAL, message)
        return life.end(outcome)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
