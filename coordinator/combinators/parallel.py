"""The fan-out with a barrier (C12)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from coordinator.combinators.runner import StepKey, StepRunner, run_to_end, runner_of
from coordinator.combinators.workers import Workers
from fanfold.errors import FieldViolation, InvalidArgument
from fanfold.model.step import AgentStepSpec, StepEvent, StepOutcome
from fanfold.ports import AgentExecutor

OnIndexedEvent = Callable[[int, StepEvent], None]
"""Takes a step's position in the input, from 0, and its event; must not block and must not raise."""

OnIndexedOutcome = Callable[[int, StepOutcome], None]
"""Takes a step's position in the input, from 0, and its outcome; must not block and must not raise."""


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
    await fan_out(runner_of(executor), specs, on_event, outcomes.__setitem__)
    return [outcomes[index] for index in range(len(specs))]


async def fan_out(
    runner: StepRunner,
    specs: Sequence[AgentStepSpec],
    on_event: OnIndexedEvent | None,
    on_outcome: OnIndexedOutcome,
    indices: Iterable[int] | None = None,
) -> None:
    """As `parallel`, for callers that take each outcome as it comes and need not hold them all.

    With `indices` only the specs at these positions are run.
    """
    refuse_duplicates(specs)

    async def run(index: int) -> None:
        spec = specs[index]
        listener = partial(on_event, index) if on_event else None
        on_outcome(index, await run_to_end(runner, StepKey.of_spec(index, spec), spec, listener))

    await Workers(range(len(specs)) if indices is None else indices, run, runner.concurrency_hint).run()


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
