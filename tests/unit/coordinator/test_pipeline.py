"""Items through stages, over executors of the test's own (C8, C10, C14, C15)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.combinators.pipeline import LEAST_AHEAD, chains, pipeline
from coordinator.combinators.runner import StepKey
from fanfold.errors import InvalidArgument
from fanfold.model.pipeline import StageContext, StageFailure
from fanfold.model.run import PipelineEvent, RunStepEvent, StageFailed
from fanfold.model.step import AgentStepSpec, FailureCode, StepEnded, StepFailure, StepOutcome, StepStarted
from fanfold.ports import OnStepEvent


def step(task_id: str, prompt: str = "p") -> AgentStepSpec:
    return AgentStepSpec(task_id=task_id, agent="a", description="d", prompt=prompt)


def outcome(spec: AgentStepSpec, *, success: bool = True) -> StepOutcome:
    failure = None if success else StepFailure(code=FailureCode.AGENT_FAILED, message="no luck")
    return StepOutcome(task_id=spec.task_id, agent=spec.agent, output=spec.prompt, success=success, failure=failure)


@dataclass
class Gates:
    """An executor whose steps wait for the gate of their prompt, if it is closed; a prompt of "fail" fails."""

    hint: int = 4
    closed: dict[str, asyncio.Event] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    cancelled: list[str] = field(default_factory=list)

    def close(self, *prompts: str) -> None:
        self.closed.update({prompt: asyncio.Event() for prompt in prompts})

    def open(self, prompt: str) -> None:
        self.closed[prompt].set()

    def concurrency_hint(self) -> int:
        return self.hint

    async def execute_step(self, spec: AgentStepSpec, on_event: OnStepEvent | None = None) -> StepOutcome:
        self.started.append(spec.prompt)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if spec.prompt in self.closed:
                await self.closed[spec.prompt].wait()
            await asyncio.sleep(0)
            if spec.prompt == "raise":
                raise RuntimeError("secret detail")
            return outcome(spec, success=spec.prompt != "fail")
        except asyncio.CancelledError:
            self.cancelled.append(spec.prompt)
            raise
        finally:
            self.running -= 1

    async def until_started(self, *prompts: str) -> None:
        async with asyncio.timeout(5):
            while not set(prompts) <= set(self.started):
                await asyncio.sleep(0.001)


def one(ctx: StageContext) -> dict[str, Any]:
    return {"task_id": "one", "agent": "a", "description": "d", "prompt": f"{ctx.item}.{ctx.stage}"}


def two(ctx: StageContext) -> dict[str, Any]:
    return {**one(ctx), "task_id": "two"}


@pytest.mark.contract("C14")
async def test_there_is_no_barrier_between_stages() -> None:
    executor = Gates()
    executor.close("b.0")
    run = asyncio.create_task(pipeline(executor, ["a", "b"], [one, two]))
    # Were there a barrier, a's second stage would not begin before b's first one ends, and that waits for the gate.
    await executor.until_started("b.0", "a.1")
    assert not run.done()
    executor.open("b.0")
    results = await asyncio.wait_for(run, 5)
    assert [result and result.output for result in results] == ["a.1", "b.1"]


@pytest.mark.contract("C14")
async def test_results_are_in_the_order_of_the_items_whatever_ends_first() -> None:
    executor = Gates(hint=10)
    executor.close("0.1")
    run = asyncio.create_task(pipeline(executor, list(range(10)), [one, two]))
    await executor.until_started(*(f"{number}.1" for number in range(10)))
    executor.open("0.1")
    assert [result and result.output for result in await run] == [f"{number}.1" for number in range(10)]


@pytest.mark.contract("C14", "C15")
async def test_a_stage_sees_its_item_and_the_outcome_before_as_attributes_and_as_mapping() -> None:
    seen: list[StageContext] = []

    def keep(ctx: StageContext) -> AgentStepSpec:
        seen.append(ctx)
        return step(f"s{ctx.stage}", prompt=f"{ctx.item['name']}{ctx.stage}")

    await pipeline(Gates(hint=1), [{"name": "x"}], [keep, keep])
    first, second = seen
    assert (first.item, first.previous, first.index, first.stage) == ({"name": "x"}, None, 0, 0)
    assert dict(first) == {"item": {"name": "x"}, "previous": None, "index": 0, "stage": 0}
    assert second.previous is not None
    assert second["previous"]["output"] == second.previous.output == "x0"
    assert (second["index"], second["stage"]) == (0, 1)
    with pytest.raises(KeyError):
        _ = second["__class__"]


@pytest.mark.contract("C14")
async def test_none_and_a_failed_step_end_the_chain_and_the_last_outcome_is_the_result() -> None:
    def first(ctx: StageContext) -> AgentStepSpec | None:
        return {"none": None, "fails": step("one", "fail")}.get(ctx.item, step("one", ctx.item))

    def second(ctx: StageContext) -> AgentStepSpec | None:
        return None if ctx.item == "short" else step("two", ctx.item.upper())

    executor = Gates()
    results = await pipeline(executor, ["none", "fails", "short", "whole"], [first, second])
    assert results[0] is None
    assert [result and (result.task_id, result.output, result.success) for result in results[1:]] == [
        ("one", "fail", False),
        ("one", "short", True),
        ("two", "WHOLE", True),
    ]
    assert sorted(executor.started) == ["WHOLE", "fail", "short", "whole"]


@pytest.mark.contract("C14")
async def test_task_ids_may_be_the_same_in_two_items_but_not_within_one() -> None:
    events: list[PipelineEvent] = []
    results = await pipeline(Gates(), ["a", "b"], [one, two, one], events.append)
    assert [result and (result.task_id, result.output) for result in results] == [("two", "a.1"), ("two", "b.1")]
    failed = [event for event in events if isinstance(event, StageFailed)]
    assert [(event.stage, event.error) for event in failed] == [
        (2, "step.task_id: 'one' is already the task id of another step of this item")
    ] * 2


@pytest.mark.contract("C14")
async def test_nothing_in_nothing_out() -> None:
    async with asyncio.timeout(5):
        assert await pipeline(Gates(), [], [one]) == []


async def coroutine(_ctx: StageContext) -> None: ...


class AsyncCallable:
    async def __call__(self, _ctx: StageContext) -> None: ...


@pytest.mark.contract("C15")
@pytest.mark.parametrize("bad", [coroutine, partial(coroutine), AsyncCallable(), 7])
async def test_a_stage_that_is_no_plain_function_is_refused_before_anything_starts(bad: Any) -> None:
    executor = Gates()
    with pytest.raises(TypeError, match=r"stages\[1\]"):
        await pipeline(executor, ["a"], [one, bad])
    assert executor.started == []


@pytest.mark.parametrize("timeout", [0, -1, 0.0001, 604_801, float("nan"), float("inf"), True, "30", None])
async def test_a_timeout_that_is_none_is_refused(timeout: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"stage_timeout: must be a number of seconds from 0\.001 to 604,800"):
        await pipeline(Gates(), ["a"], [one], stage_timeout=timeout)


@pytest.mark.parametrize(
    ("stages", "error"), [([], InvalidArgument), (one, TypeError), ("one", TypeError), (None, TypeError)]
)
async def test_stages_that_are_no_list_of_any_are_refused(stages: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="stages"):
        await pipeline(Gates(), ["a"], stages)


def raises(_ctx: StageContext) -> None:
    raise ValueError("boom")


def leaves(_ctx: StageContext) -> None:
    sys.exit(3)


def is_async_in_disguise(ctx: StageContext) -> Any:
    return coroutine(ctx)


BAD_STAGES: list[tuple[Any, str]] = [
    (raises, "the stage raised ValueError: boom"),
    (leaves, "the stage raised SystemExit: 3"),
    (lambda _ctx: 7, "the stage answered something of type int, which is no step"),
    (is_async_in_disguise, "the stage answered something of type coroutine, which is no step"),
    (lambda _ctx: {}, "step.task_id: is required"),
    (lambda _ctx: {**one(_ctx), "promt": "x"}, "step.promt: unknown field"),
    (lambda _ctx: {**one(_ctx), "max_steps": 0}, "step.max_steps: must be greater than or equal to 1"),
    (lambda _ctx: {**one(_ctx), "output_schema": {"const": {1}}}, "step.output_schema: must be JSON: "),
    (lambda _ctx: threading.Event().wait(3), "the stage did not answer within 0.2 s"),
]


@pytest.mark.contract("C15", "F4")
@pytest.mark.parametrize(("bad", "error"), BAD_STAGES)
@pytest.mark.parametrize("stage", [0, 1])
async def test_a_stage_that_goes_wrong_ends_its_own_chain_and_is_told(bad: Any, error: str, stage: int) -> None:
    def sometimes(ctx: StageContext) -> Any:
        return bad(ctx) if ctx.item == "bad" else {**one(ctx), "task_id": "other"}

    stages = [sometimes, one] if stage == 0 else [one, sometimes]
    events: list[PipelineEvent] = []
    async with asyncio.timeout(5):
        results = await pipeline(Gates(), ["good", "bad", "good"], stages, events.append, stage_timeout=0.2)
    assert [result and result.output for result in results] == ["good.1", None if stage == 0 else "bad.0", "good.1"]
    (failed,) = [event for event in events if isinstance(event, StageFailed)]
    assert (failed.index, failed.stage) == (1, stage)
    assert failed.error.startswith(error)


@pytest.mark.contract("C8", "C14")
async def test_an_executor_that_raises_ends_only_that_items_chain() -> None:
    def first(ctx: StageContext) -> AgentStepSpec:
        return step("one", ctx.item)

    results = await pipeline(Gates(), ["raise", "fine"], [first, two])
    assert results[0] is not None
    assert results[0].failure is not None
    assert (results[0].failure.code, results[0].failure.message) == (
        FailureCode.INTERNAL,
        "the executor raised RuntimeError",
    )
    assert results[1] is not None
    assert results[1].output == "fine.1"


@pytest.mark.contract("C11", "C14")
async def test_events_name_item_and_stage_and_are_numbered() -> None:
    events: list[PipelineEvent] = []
    await pipeline(Gates(), ["a", "b"], [one, two, raises], events.append)
    assert [event.sequence for event in events] == list(range(1, 11))
    for index in range(2):
        told = [event for event in events if event.index == index]
        kinds = [(event.stage, type(event.event) if isinstance(event, RunStepEvent) else type(event)) for event in told]
        assert kinds == [(0, StepStarted), (0, StepEnded), (1, StepStarted), (1, StepEnded), (2, StageFailed)]


@pytest.mark.contract("C10")
async def test_steps_in_flight_follow_the_hint_up_and_down_in_mid_run() -> None:
    executor = Gates(hint=2)
    executor.close("wait")

    def waits(_ctx: StageContext) -> AgentStepSpec:
        return step("one", "wait")

    run = asyncio.create_task(pipeline(executor, list(range(40)), [waits, two]))

    async def until_running(count: int) -> None:
        async with asyncio.timeout(5):
            while executor.running != count:
                await asyncio.sleep(0.001)

    await until_running(2)
    executor.hint = 5  # a node joined, while every step runs on
    await until_running(5)
    executor.hint = 0  # nodes left; it still makes progress
    executor.open("wait")
    await asyncio.wait_for(run, 5)
    assert executor.most_running == 5
    assert len(executor.started) == 80


@pytest.mark.contract("C10", "C14")
async def test_a_chain_that_waits_for_its_stage_leaves_no_slot_idle() -> None:
    release = threading.Event()

    def slow_for_the_first(ctx: StageContext) -> AgentStepSpec:
        if ctx.index == 0:
            release.wait(5)
        return step("one", str(ctx.index))

    executor = Gates(hint=1)
    run = asyncio.create_task(pipeline(executor, list(range(20)), [slow_for_the_first]))
    await executor.until_started(*map(str, range(1, 20)))
    release.set()
    await run
    assert executor.started[-1] == "0"


async def test_only_a_bounded_number_of_items_is_under_way() -> None:
    asked: Counter[int] = Counter()
    answer = asyncio.Event()

    async def ask(index: int, stage: int, previous: StepOutcome | None) -> AgentStepSpec | None:
        asked[index] += 1
        await answer.wait()
        return None

    results: dict[int, StepOutcome | None] = {}
    runner = Model({}, hint=3)
    run = asyncio.create_task(
        chains(runner, range(1000), 1, ask, on_event=None, on_stage_failed=None, on_result=results.__setitem__)
    )
    async with asyncio.timeout(5):
        while len(asked) < 3 + LEAST_AHEAD:
            await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(asked) == 3 + LEAST_AHEAD
    answer.set()
    await asyncio.wait_for(run, 5)
    assert results == dict.fromkeys(range(1000))


@pytest.mark.contract("C9")
async def test_a_cancelled_run_cancels_its_steps_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    executor = Gates(hint=3)
    executor.close("0.0", "1.0", "2.0")
    run = asyncio.create_task(pipeline(executor, list(range(10)), [one]))
    await executor.until_started("0.0", "1.0", "2.0")
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert sorted(executor.cancelled) == ["0.0", "1.0", "2.0"]
    async with asyncio.timeout(5):
        while set(threading.enumerate()) - before:
            await asyncio.sleep(0.01)


@pytest.mark.contract("C8")
def test_it_is_importable_without_any_service() -> None:
    code = (
        "import sys, coordinator.combinators.pipeline;"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'grpc', 'google', 'executor_node'}))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


async def test_many_items_take_little_time_each() -> None:
    began = time.monotonic()
    results = await pipeline(Gates(hint=64), list(range(2000)), [one, two])
    assert [result and result.output for result in results] == [f"{number}.1" for number in range(2000)]
    assert time.monotonic() - began < 20


class Does(Enum):
    """What becomes of one stage of one item."""

    SUCCEEDS = "a step that succeeds"
    FAILS = "a step that fails"
    RAISES = "a step at which the executor raises"
    REPEATS = "a step whose task id the item has had"
    ENDS = "None"
    BREAKS = "a stage that fails"


Plan = Mapping[tuple[int, int], Does]


@dataclass
class Model:
    """Runs steps as the plan says, each after some turns of the loop; implements StepRunner."""

    plan: Plan
    hint: int = 4
    turns: Iterator[int] = field(default_factory=lambda: iter(()))
    running: int = 0
    ran: list[tuple[int, int]] = field(default_factory=list)

    def concurrency_hint(self) -> int:
        return self.hint

    async def run_step(self, key: StepKey, spec: AgentStepSpec, on_event: OnStepEvent | None) -> StepOutcome:
        assert key.name == f"{key.position}.{key.stage}"
        self.ran.append((key.position, key.stage))
        self.running += 1
        assert self.running <= max(1, self.hint)
        try:
            for _ in range(next(self.turns, 0)):
                await asyncio.sleep(0)
        finally:
            self.running -= 1
        if self.plan[key.position, key.stage] is Does.RAISES:
            raise RuntimeError("it broke")
        return outcome(spec, success=self.plan[key.position, key.stage] is not Does.FAILS)


@dataclass
class Expected:
    """What a sequential reading of the plan comes to."""

    results: list[str | None] = field(default_factory=list)
    ran: set[tuple[int, int]] = field(default_factory=set)
    failed: set[tuple[int, int]] = field(default_factory=set)

    @classmethod
    def of(cls, plan: Plan, begins: list[int], stages: int) -> Expected:
        expected = cls()
        for index, begin in enumerate(begins):
            result = f"{index}.{begin - 1}" if begin else None
            for stage in range(begin, stages):
                does = plan[index, stage]
                if does in (Does.BREAKS, Does.REPEATS):
                    expected.failed.add((index, stage))
                if does in (Does.BREAKS, Does.REPEATS, Does.ENDS):
                    break
                expected.ran.add((index, stage))
                result = f"{index}.{stage}"
                if does is not Does.SUCCEEDS:
                    break
            expected.results.append(result)
        return expected


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, list[int], int]:
    """What each stage of each item does, at which stage each item begins, and the number of stages."""
    items, stages = draw(st.integers(0, 12)), draw(st.integers(1, 4))
    does = st.sampled_from([Does.SUCCEEDS] * 6 + list(Does))
    plan = {(index, stage): draw(does) for index in range(items) for stage in range(stages)}
    begins = draw(st.lists(st.integers(0, stages) | st.just(0), min_size=items, max_size=items))
    for index, begin in enumerate(begins):
        if plan.get((index, begin)) is Does.REPEATS:  # there is nothing yet to repeat
            plan[index, begin] = Does.BREAKS
    return plan, begins, stages


@pytest.mark.contract("C14", "C15")
@settings(max_examples=300, deadline=None)
@given(plans(), st.integers(0, 5), st.lists(st.integers(0, 3), max_size=60))
def test_it_comes_to_what_one_item_after_the_other_would(
    drawn: tuple[Plan, list[int], int], hint: int, turns: list[int]
) -> None:
    plan, begins, stages = drawn
    runner = Model(plan, hint=hint, turns=iter(turns))
    events: list[tuple[int, int, type]] = []
    failed: set[tuple[int, int]] = set()
    results: dict[int, StepOutcome | None] = {}

    def before(index: int, stage: int) -> StepOutcome | None:
        return outcome(step(f"{index}.{stage - 1}")) if stage else None

    async def ask(index: int, stage: int, previous: StepOutcome | None) -> AgentStepSpec | None:
        assert (previous.task_id if previous else None) == (f"{index}.{stage - 1}" if stage else None)
        for _ in range(next(runner.turns, 0)):
            await asyncio.sleep(0)
        match plan[index, stage]:
            case Does.ENDS:
                return None
            case Does.BREAKS:
                raise StageFailure("it broke")
            case Does.REPEATS:
                return step(f"{index}.{stage - 1}")
            case _:
                return step(f"{index}.{stage}")

    async def run() -> None:
        await chains(
            runner,
            range(len(begins)),
            stages,
            ask,
            on_event=lambda index, stage, event: events.append((index, stage, type(event))),
            on_stage_failed=lambda index, stage, _error: failed.add((index, stage)),
            on_result=results.__setitem__,
            begin_at=lambda index: (begins[index], before(index, begins[index])),
        )

    asyncio.run(asyncio.wait_for(run(), 10))
    expected = Expected.of(plan, begins, stages)
    told = [results[index] for index in range(len(begins))]
    assert [result.task_id if result else None for result in told] == expected.results
    assert len(runner.ran) == len(set(runner.ran))
    assert (set(runner.ran), failed) == (expected.ran, expected.failed)
    for index in range(len(begins)):
        mine = [(stage, kind) for at, stage, kind in events if at == index]
        stages_run = sorted(stage for at, stage in expected.ran if at == index)
        assert mine == [(stage, kind) for stage in stages_run for kind in (StepStarted, StepEnded)]
