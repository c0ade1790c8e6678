"""What every AgentExecutor does, whoever implements it (C8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agents import contract_agents
from coordinator.combinators.parallel import parallel
from coordinator.placement.in_process import InProcessExecutor
from fanfold.clients.coordinator import CoordinatorClient
from fanfold.model.run import EventDetail
from fanfold.model.step import (
    AgentStepSpec,
    FailureCode,
    SourceAnchor,
    StepEnded,
    StepEvent,
    StepOutcome,
    StepPolicy,
    StepProgressed,
    StepStarted,
    TextWritten,
    ToolFinished,
    TurnFinished,
    Usage,
)
from fanfold.ports import AgentExecutor, OnStepEvent
from fanfold.schema import SchemaValidator
from support.mesh import running_mesh

pytestmark = [pytest.mark.process, pytest.mark.contract("C8")]


class OverTheMesh:
    """The mesh as an AgentExecutor: each step is a call of `Coordinator.ExecuteStep`."""

    def __init__(self, client: CoordinatorClient) -> None:
        self._client = client

    def concurrency_hint(self) -> int:
        return 8

    async def execute_step(self, spec: AgentStepSpec, on_event: OnStepEvent | None = None) -> StepOutcome:
        detail = EventDetail.OUTCOMES if on_event is None else EventDetail.PROGRESS
        events = self._client.execute_step(spec, detail=detail)
        try:
            async for event in events:
                if on_event is not None:
                    on_event(event)
                if isinstance(event, StepEnded):
                    return event.outcome
        finally:
            await events.aclose()
        raise AssertionError("no outcome came")


@pytest.fixture(params=["in-process", "mesh"])
async def executor(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AgentExecutor]:
    if request.param == "mesh":
        async with running_mesh(tmp_path) as running, CoordinatorClient(running.coordinator.address) as client:
            yield OverTheMesh(client)
    else:
        names = ["echo", "gives_up", "crashes", "waits", "tells", "answers"]
        agents = {name.replace("_", "-"): getattr(contract_agents, name) for name in names}
        async with SchemaValidator() as validator:
            yield InProcessExecutor(agents, validator, parallelism=8)


def step(agent: str, prompt: str = "x", **more: Any) -> AgentStepSpec:
    return AgentStepSpec(task_id="t-1", agent=agent, description="d", prompt=prompt, **more)


@pytest.mark.contract("C2")
async def test_a_success_is_told_completely(executor: AgentExecutor) -> None:
    outcome = await executor.execute_step(step("echo", "hello"))
    assert (outcome.task_id, outcome.agent, outcome.output, outcome.success) == ("t-1", "echo", "hello", True)
    assert outcome.failure is None
    assert outcome.structured is None
    assert outcome.attempts == 1
    assert outcome.session_id
    assert outcome.node
    assert outcome.started_at is not None
    assert outcome.ended_at is not None
    assert outcome.started_at <= outcome.ended_at


@pytest.mark.contract("C2", "C3", "C9")
async def test_an_agent_that_gives_up_is_a_failed_outcome(executor: AgentExecutor) -> None:
    outcome = await executor.execute_step(step("gives-up", "no luck"))
    assert not outcome.success
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.message) == (FailureCode.AGENT_FAILED, "no luck")
    assert outcome.failure.retryable


@pytest.mark.contract("C3", "C9")
async def test_an_agent_that_raises_has_crashed_and_shows_no_stack(executor: AgentExecutor) -> None:
    outcome = await executor.execute_step(step("crashes", "boom"))
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.CRASHED
    assert "RuntimeError: boom" in outcome.failure.message
    assert "Traceback" not in outcome.failure.message


@pytest.mark.contract("C3", "C9")
async def test_an_unknown_agent_is_the_steps_failure(executor: AgentExecutor) -> None:
    outcome = await executor.execute_step(step("nobody"))
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.AGENT_UNKNOWN
    assert "'nobody'" in outcome.failure.message
    assert outcome.attempts == 0


@pytest.mark.contract("C6", "F4")
async def test_a_step_ends_at_its_timeout(executor: AgentExecutor) -> None:
    outcome = await asyncio.wait_for(
        executor.execute_step(step("waits", "600", policy=StepPolicy(timeout=0.2))), timeout=15
    )
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.TIMED_OUT
    assert "0.2 s" in outcome.failure.message


@pytest.mark.contract("C9")
async def test_a_cancelled_call_is_cancelled(executor: AgentExecutor) -> None:
    started = asyncio.Event()
    call = asyncio.create_task(executor.execute_step(step("waits", "600"), lambda _event: started.set()))
    await asyncio.wait_for(started.wait(), 15)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(call, 15)


@pytest.mark.contract("C11")
@pytest.mark.parametrize("agent", ["echo", "tells", "gives-up", "crashes", "nobody"])
async def test_one_started_and_one_ended_with_progress_between(executor: AgentExecutor, agent: str) -> None:
    events: list[StepEvent] = []
    outcome = await executor.execute_step(step(agent), events.append)
    assert isinstance(events[0], StepStarted)
    assert isinstance(events[-1], StepEnded)
    assert events[-1].outcome == outcome
    assert all(isinstance(event, StepProgressed) for event in events[1:-1])
    assert {event.task_id for event in events} == {"t-1"}
    assert [event.time for event in events] == sorted(event.time for event in events)


@pytest.mark.contract("C2", "C4", "C11")
async def test_progress_usage_and_anchors_are_told(executor: AgentExecutor) -> None:
    events: list[StepEvent] = []
    outcome = await executor.execute_step(step("tells"), events.append)
    progress = [event.progress for event in events if isinstance(event, StepProgressed)]
    assert progress == [
        ToolFinished(name="search", success=True, detail="found it"),
        TurnFinished(turn=1, usage=Usage(input_tokens=10, output_tokens=5, requests=1)),
        TextWritten(text="almost "),
    ]
    assert outcome.output == "done"
    assert outcome.usage == Usage(input_tokens=20, output_tokens=7, requests=2)
    assert outcome.source_anchors == (
        SourceAnchor(tool="search", url_or_path="https://example.org/page", lines="3-17"),
    )


@pytest.mark.contract("C20")
async def test_a_value_that_satisfies_the_schema_is_structured(executor: AgentExecutor) -> None:
    schema = {"type": "object", "properties": {"words": {"type": "array"}}, "required": ["words"]}
    outcome = await executor.execute_step(step("answers", "a b", output_schema=schema))
    assert outcome.success, outcome.failure
    assert outcome.structured == {"words": ["a", "b"], "large": 2**60 + 1}


@pytest.mark.contract("C20")
async def test_text_that_already_validates_is_structured(executor: AgentExecutor) -> None:
    outcome = await executor.execute_step(step("echo", "[1, 2]", output_schema={"items": {"type": "integer"}}))
    assert outcome.success, outcome.failure
    assert outcome.structured == [1, 2]
    assert outcome.output == "[1, 2]"


@pytest.mark.contract("C20", "F14")
@pytest.mark.parametrize(("prompt", "why"), [("[1, 2]", "not of type 'string'"), ("plain words", "not JSON")])
async def test_a_value_that_does_not_is_output_invalid_and_the_text_is_kept(
    executor: AgentExecutor, prompt: str, why: str
) -> None:
    outcome = await executor.execute_step(step("echo", prompt, output_schema={"type": "string"}))
    assert not outcome.success
    assert outcome.structured is None
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.OUTPUT_INVALID
    assert why in outcome.failure.message
    assert outcome.output == f"{prompt}\n[structured output failed: {outcome.failure.message}]"


@pytest.mark.contract("C10", "C12")
async def test_a_fan_out_over_it_keeps_the_order_and_the_siblings(executor: AgentExecutor) -> None:
    assert executor.concurrency_hint() == 8
    specs = [
        AgentStepSpec(task_id=str(number), agent="echo" if number % 7 else "crashes", description="d", prompt="p")
        for number in range(30)
    ]
    outcomes = await parallel(executor, specs)
    assert [outcome.task_id for outcome in outcomes] == [str(number) for number in range(30)]
    assert [outcome.success for outcome in outcomes] == [bool(number % 7) for number in range(30)]
