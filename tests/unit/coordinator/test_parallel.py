"""The fan-out with a barrier, over executors of the test's own (C8, C10, C12)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable

import pytest

from coordinator.combinators.parallel import parallel
from fanfold.errors import InvalidArgument
from fanfold.model.step import AgentStepSpec, FailureCode, StepEnded, StepEvent, StepOutcome, StepStarted
from fanfold.ports import OnStepEvent


def step(task_id: str) -> AgentStepSpec:
    return AgentStepSpec(task_id=task_id, agent="a", description="d", prompt=task_id)


class Scripted:
    """An executor whose steps wait for `release` and then do what `behave` says."""

    def __init__(self, hint: int = 4, behave: Callable[[AgentStepSpec], StepOutcome] | None = None) -> None:
        self.hint = hint
        self.running: set[str] = set()
        self.most_running = 0
        self.cancelled: list[str] = []
        self.release = asyncio.Event()
        self._behave = behave or outcome
        self._changed = asyncio.Condition()

    def concurrency_hint(self) -> int:
        return self.hint

    async def execute_step(self, spec: AgentStepSpec, on_event: OnStepEvent | None = None) -> StepOutcome:
        self.running.add(spec.task_id)
        self.most_running = max(self.most_running, len(self.running))
        async with self._changed:
            self._changed.notify_all()
        try:
            await self.release.wait()
            return self._behave(spec)
        except asyncio.CancelledError:
            self.cancelled.append(spec.task_id)
            raise
        finally:
            self.running.discard(spec.task_id)

    async def until_running(self, count: int) -> None:
        async with asyncio.timeout(5), self._changed:
            await self._changed.wait_for(lambda: len(self.running) == count)


def outcome(spec: AgentStepSpec) -> StepOutcome:
    return StepOutcome(task_id=spec.task_id, agent=spec.agent, output=spec.prompt, success=True)


@pytest.mark.contract("C12")
async def test_outcomes_are_in_input_order_whatever_ends_first() -> None:
    class Backwards:
        def concurrency_hint(self) -> int:
            return 10

        async def execute_step(self, spec: AgentStepSpec, on_event: OnStepEvent | None = None) -> StepOutcome:
            for _ in range(10 - int(spec.task_id)):
                await asyncio.sleep(0)
            return outcome(spec)

    outcomes = await parallel(Backwards(), [step(str(number)) for number in range(10)])
    assert [one.task_id for one in outcomes] == [str(number) for number in range(10)]


@pytest.mark.contract("C12")
async def test_nothing_in_nothing_out() -> None:
    async with asyncio.timeout(5):
        assert await parallel(Scripted(), []) == []


@pytest.mark.contract("C12", "F20")
async def test_a_task_id_given_twice_is_refused_before_anything_starts() -> None:
    executor = Scripted()
    executor.release.set()
    with pytest.raises(InvalidArgument) as caught:
        await parallel(executor, [step("a"), step("b"), step("a")])
    assert str(caught.value.violations[0]) == "steps[2].task_id: 'a' is already the task id of steps[0]"
    assert executor.most_running == 0


@pytest.mark.contract("C12")
async def test_an_executor_that_raises_spoils_only_its_own_branch() -> None:
    def behave(spec: AgentStepSpec) -> StepOutcome:
        if spec.task_id == "1":
            raise RuntimeError("secret detail")
        return outcome(spec)

    executor = Scripted(behave=behave)
    executor.release.set()
    events: list[tuple[int, StepEvent]] = []
    outcomes = await parallel(
        executor, [step(str(number)) for number in range(3)], lambda index, event: events.append((index, event))
    )
    assert [one.success for one in outcomes] == [True, False, True]
    failure = outcomes[1].failure
    assert failure is not None
    assert failure.code is FailureCode.INTERNAL
    assert "secret" not in failure.message
    for index in range(3):
        assert [type(event) for at, event in events if at == index] == [StepStarted, StepEnded]


@pytest.mark.contract("C10")
async def test_steps_in_flight_follow_the_hint_up_and_down_in_mid_run() -> None:
    executor = Scripted(hint=2)
    run = asyncio.create_task(parallel(executor, [step(str(number)) for number in range(40)]))
    await executor.until_running(2)
    executor.hint = 5  # a node joined
    await executor.until_running(5)
    executor.hint = 1  # nodes left: no further step beyond one at a time
    executor.release.set()
    assert len(await asyncio.wait_for(run, 5)) == 40
    assert executor.most_running == 5


@pytest.mark.contract("C10")
async def test_a_hint_of_nothing_still_makes_progress() -> None:
    executor = Scripted(hint=0)
    executor.release.set()
    outcomes = await asyncio.wait_for(parallel(executor, [step("a"), step("b")]), 5)
    assert [one.success for one in outcomes] == [True, True]
    assert executor.most_running == 1


async def test_a_cancelled_run_cancels_its_steps_and_starts_no_more() -> None:
    executor = Scripted(hint=3)
    run = asyncio.create_task(parallel(executor, [step(str(number)) for number in range(10)]))
    await executor.until_running(3)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert sorted(executor.cancelled) == ["0", "1", "2"]
    assert executor.running == set()


async def test_one_step_takes_no_time_of_its_own() -> None:
    executor = Scripted()
    executor.release.set()
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(20):
        await parallel(executor, [step("a")])
    # Were a run to end only at its next look at the hint, this would be 20 times that interval: 4 s.
    assert loop.time() - began < 2


@pytest.mark.contract("C8")
def test_combinators_are_importable_without_any_service() -> None:
    code = (
        "import sys, coordinator.combinators.parallel;"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'grpc', 'google', 'executor_node'}))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
