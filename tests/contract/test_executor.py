"""What every AgentExecutor does, whoever implements it (C8)."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agents import contract_agents
from coordinator.budget import TokenBudget
from coordinator.combinators.budgeted import Budgeted
from coordinator.combinators.parallel import parallel
from coordinator.placement.in_process import AgentFunction, InProcessExecutor
from coordinator.placement.mesh import Mesh
from coordinator.placement.nodes import Nodes
from coordinator.placement.queue import Patience, PlacementQueue
from coordinator.scope import Scope
from fanfold.agent import StepContext
from fanfold.clients.coordinator import CoordinatorClient
from fanfold.clients.node_link import GrpcNodeDialer
from fanfold.model.node import NodeState, NodeView
from fanfold.model.run import Budget, EventDetail
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
from support.mesh import running_mesh, until

pytestmark = [pytest.mark.process, pytest.mark.contract("C8")]


HINT = 5
"""What the mesh's only node, and the executor of this process, would like to run at once."""


class OverGrpc:
    """A coordinator's client as an AgentExecutor: each step is a call of `Coordinator.ExecuteStep`.

    `nodes` are the coordinator's, as it told.
    """

    def __init__(self, client: CoordinatorClient, nodes: Sequence[NodeView]) -> None:
        self._client = client
        self._nodes = nodes

    def concurrency_hint(self) -> int:
        return sum(view.node.status.concurrency_hint for view in self._nodes)

    async def execute_step(self, spec: AgentStepSpec, on_event: OnStepEvent | None = None) -> StepOutcome:
        detail = EventDetail.OUTCOMES if on_event is None else EventDetail.PROGRESS
        async with aclosing(self._client.execute_step(spec, detail=detail)) as events:
            async for event in events:
                if on_event is not None:
                    on_event(event)
                if isinstance(event, StepEnded):
                    return event.outcome
        raise AssertionError("no outcome came")


def shell_in(workspace: Path) -> AgentFunction:
    """What the nodes' `shell` is, for the executor without nodes."""

    async def shell(spec: AgentStepSpec, context: StepContext) -> str:
        process = await asyncio.create_subprocess_shell(spec.prompt, cwd=workspace, stdout=PIPE)
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return output.decode()

    return shell


@asynccontextmanager
async def in_process(workspace: Path) -> AsyncIterator[AgentExecutor]:
    names = ["echo", "gives_up", "lacks_quota", "crashes", "waits", "tells", "spends", "answers"]
    agents = {name.replace("_", "-"): getattr(contract_agents, name) for name in names}
    async with SchemaValidator() as validator:
        yield InProcessExecutor(agents | {"shell": shell_in(workspace)}, validator, parallelism=HINT)


@asynccontextmanager
async def over_the_mesh(workspace: Path) -> AsyncIterator[AgentExecutor]:
    """What combinators are given in production, linked to a node that is up."""
    dialer = GrpcNodeDialer("contract")
    async with (
        running_mesh(workspace, node={"capacity": {"concurrency_hint": HINT}}) as running,
        SchemaValidator() as validator,
        Nodes(dialer) as nodes,
    ):
        mesh = Mesh(nodes, PlacementQueue(nodes, Patience(agent_unknown=0.2, unplaceable=0.5)), validator)
        nodes.want(running.nodes[0].address)
        await until(lambda: [known.standing.state for known in nodes] == [NodeState.READY], "the node is linked")
        yield mesh.executor(Scope(run_id="run-1", owner="o", progress=True))


@asynccontextmanager
async def over_grpc(workspace: Path) -> AsyncIterator[AgentExecutor]:
    async with (
        running_mesh(workspace, node={"capacity": {"concurrency_hint": HINT}}) as running,
        CoordinatorClient(running.coordinator.address) as client,
    ):
        yield OverGrpc(client, await client.list_nodes())


@pytest.fixture(params=[in_process, over_the_mesh, over_grpc], ids=lambda executor: str(executor.__name__))
async def executor(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AgentExecutor]:
    async with request.param(tmp_path) as implementation:
        yield implementation


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


@pytest.mark.contract("C3", "C8", "F8")
async def test_an_agent_whose_provider_has_no_quota_left_says_so_by_its_code(executor: AgentExecutor) -> None:
    outcome = await executor.execute_step(step("lacks-quota", "no money"))
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.message) == (FailureCode.QUOTA_EXHAUSTED, "no money")


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


@pytest.mark.contract("C9", "F1")
async def test_a_cancelled_call_is_cancelled_and_its_processes_are_gone(
    executor: AgentExecutor, tmp_path: Path
) -> None:
    call = asyncio.create_task(executor.execute_step(step("shell", "echo $$ > pid; exec sleep 600")))
    pid_file = tmp_path / "pid"
    await until(lambda: pid_file.exists() and bool(pid_file.read_text().strip()), "the command runs")
    process = Path("/proc", pid_file.read_text().strip())
    assert process.exists()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(call, 15)
    if isinstance(executor, OverGrpc):  # gRPC ends a call for its client before the server knows
        await until(lambda: not process.exists(), "the command is gone")
    assert not process.exists()


@pytest.mark.contract("C9")
async def test_a_call_that_is_cancelled_as_it_starts_leaves_nothing(executor: AgentExecutor) -> None:
    for turns in range(5):
        call = asyncio.create_task(executor.execute_step(step("waits", "600")))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(call, 15)
    assert (await executor.execute_step(step("echo", "still here"))).output == "still here"


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


@pytest.mark.contract("C6", "C13")
async def test_a_step_that_has_spent_more_than_its_cap_is_stopped(executor: AgentExecutor) -> None:
    outcome = await executor.execute_step(step("spends", "60 60 60", policy=StepPolicy(max_tokens=100)))
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.retryable) == (FailureCode.BUDGET_EXHAUSTED, False)
    assert outcome.failure.message == "it spent 120 of the 100 tokens it may"
    assert outcome.usage == Usage(input_tokens=120, requests=2)
    within = await executor.execute_step(step("spends", "60 40", policy=StepPolicy(max_tokens=100)))
    assert within.output == "100 of 100"
    assert within.usage == Usage(input_tokens=100, requests=2)


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


@pytest.mark.contract("C10")
async def test_it_hints_what_is_configured_to_be_wanted(executor: AgentExecutor) -> None:
    assert executor.concurrency_hint() == HINT


@pytest.mark.contract("C13")
async def test_a_budget_over_it_is_kept_and_accounted_for(executor: AgentExecutor) -> None:
    budget = TokenBudget(200, steps=5)
    specs = [
        AgentStepSpec(task_id=str(number), agent="spends", description="d", prompt=prompt)
        for number, prompt in enumerate(["40", "30 10", "20 fail", "30 30 30", "10"])
    ]
    outcomes = await parallel(Budgeted(executor, budget), specs)
    assert [outcome.output for outcome in outcomes] == ["40 of 40", "40 of 40", "", "", "10 of 40"]
    codes = [outcome.failure and outcome.failure.code for outcome in outcomes]
    assert codes == [None, None, FailureCode.AGENT_FAILED, FailureCode.BUDGET_EXHAUSTED, None]
    # Where an executor tries again what may be tried again, it costs again.
    spent = 40 + 40 + 20 * outcomes[2].attempts + 60 + 10
    assert budget.told() == Budget(limit=200, spent=spent)
    left = 200 - spent
    refused = await Budgeted(executor, budget).execute_step(step("spends", "1", policy=StepPolicy(max_tokens=left + 1)))
    assert refused.failure is not None
    assert refused.failure.code is FailureCode.BUDGET_EXHAUSTED
    assert refused.attempts == 0
    last = await Budgeted(executor, budget).execute_step(step("spends", str(left), policy=StepPolicy(max_tokens=left)))
    assert last.success, last.failure
    assert budget.told() == Budget(limit=200, spent=200, refused_steps=1)


@pytest.mark.contract("C9", "C13")
async def test_a_call_within_a_budget_that_is_cancelled_costs_what_may_have_been_spent(executor: AgentExecutor) -> None:
    budget = TokenBudget(100, steps=1)
    events: list[StepEvent] = []
    budgeted = Budgeted(executor, budget)
    call = asyncio.create_task(
        budgeted.execute_step(step("waits", "600", policy=StepPolicy(max_tokens=70)), events.append)
    )
    waits = asyncio.create_task(budgeted.execute_step(step("spends", "5", policy=StepPolicy(max_tokens=40))))
    await until(lambda: bool(events), "it has begun")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(call, 15)
    refused = await asyncio.wait_for(waits, 15)
    assert refused.failure is not None
    assert refused.failure.code is FailureCode.BUDGET_EXHAUSTED
    assert budget.told() == Budget(limit=100, spent=70, refused_steps=1)


@pytest.mark.contract("C12")
async def test_a_fan_out_over_it_keeps_the_order_and_the_siblings(executor: AgentExecutor) -> None:
    specs = [
        AgentStepSpec(task_id=str(number), agent="echo" if number % 7 else "crashes", description="d", prompt="p")
        for number in range(30)
    ]
    outcomes = await parallel(executor, specs)
    assert [outcome.task_id for outcome in outcomes] == [str(number) for number in range(30)]
    assert [outcome.success for outcome in outcomes] == [bool(number % 7) for number in range(30)]
