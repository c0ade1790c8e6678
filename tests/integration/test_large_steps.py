"""Steps of 50 MB through a whole mesh: they harm nobody, survive broken links, and have limits that are named (F11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from executor_node.app import running as running_node
from executor_node.supervisor.client import Supervision
from fanfold import Mesh
from fanfold.clients.link_parts import PROGRESS_WINDOW
from fanfold.errors import InvalidArgument
from fanfold.model.node import NodeState
from fanfold.model.step import FailureCode, StepEvent, StepProgressed, TurnFinished
from fanfold.parts import pieces_of
from fanfold.rpc.channels import open_channel
from fanfold.rpc.status import from_rpc_error
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1 import executor_node_pb2 as node_pb
from fanfold.v1 import step_pb2
from fanfold.v1.coordinator_pb2_grpc import CoordinatorStub
from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeStub
from support.mesh import coordinator_alone, node_config, running_mesh, until, until_ready
from support.proxy import Proxy, proxied

pytestmark = [pytest.mark.process, pytest.mark.contract("F11")]

MEGABYTE = 1_000_000
LARGE = "".join(f"{number:09}," for number in range(5_000_000))
"""50 MB, no two pieces of it alike."""

NOT_ASCII = "aé漢😀" * 500_000


def step(task_id: str, prompt: str, agent: str = "noop", **policy: object) -> dict[str, Any]:
    return {"task_id": task_id, "agent": agent, "description": "d", "prompt": prompt, "policy": policy}


def writes(size: int, letter: str = "x") -> str:
    """A shell command that writes so many bytes, and notes in the workspace that it ran."""
    return f"echo {letter} >> ran; head -c {size} /dev/zero | tr '\\0' {letter}"


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


async def states(mesh: Mesh) -> list[tuple[str, NodeState, object]]:
    return [(view.node.name, view.state, view.state_changed_at) for view in await mesh.nodes()]


async def test_a_large_step_beside_a_thousand_small_ones_makes_no_node_look_dead(tmp_path: Path) -> None:
    assert len(LARGE) == 50 * MEGABYTE
    small = {f"small-{number}": f"prompt {number}" for number in range(1000)}
    prompts = {"large": LARGE, "not ascii": NOT_ASCII, **small, "another": LARGE[::-1]}
    async with running_mesh(tmp_path, nodes=2) as running:
        before = await states(running.mesh)
        assert [state for _, state, _ in before] == [NodeState.READY, NodeState.READY]
        outcomes = await running.mesh.parallel([step(task_id, prompt) for task_id, prompt in prompts.items()])
        assert await states(running.mesh) == before, "no node has been anything but ready"
    assert all(outcome.success for outcome in outcomes)
    assert [outcome.attempts for outcome in outcomes] == [1] * len(prompts)
    for outcome, (task_id, prompt) in zip(outcomes, prompts.items(), strict=True):
        assert outcome.task_id == task_id
        assert digest(outcome.output) == digest(prompt)


async def test_a_single_large_step_is_executed_too(tmp_path: Path) -> None:
    async with running_mesh(tmp_path) as running:
        outcome = await running.mesh.execute(step("t", LARGE))
    assert outcome.success
    assert digest(outcome.output) == digest(LARGE)


@pytest.mark.contract("C14", "C15")
async def test_large_texts_go_from_stage_to_stage_of_a_pipeline(tmp_path: Path) -> None:
    def first(context: Any) -> dict[str, Any]:
        return step("first", context.item * 2_000_000)

    def second(context: Any) -> dict[str, Any]:
        return step("second", context.previous.output + "!")

    async with running_mesh(tmp_path) as running:
        outcomes = await running.mesh.pipeline(["ab", "cdé", "e"], [first, second])
    assert [outcome.output for outcome in outcomes if outcome] == [
        f"{item * 2_000_000}!" for item in ["ab", "cdé", "e"]
    ]


@pytest.mark.contract("C16")
async def test_large_outcomes_are_recorded_and_told_again_whole(tmp_path: Path) -> None:
    steps = [step("large", NOT_ASCII * 2), step("fails", "exit 1", "shell")]
    journal = {"path": str(tmp_path / "journal.db")}
    async with running_mesh(tmp_path, coordinator={"journal": journal}) as running:
        for _ in range(2):
            large, fails = await running.mesh.parallel_resumable(steps, workflow_id="w")
            assert digest(large.output) == digest(NOT_ASCII * 2)
            assert not fails.success


@pytest.mark.contract("C20")
async def test_large_structured_values_get_through(tmp_path: Path) -> None:
    value = {"words": ["é" * 100] * 3000}
    schema = {"type": "object", "description": "x" * 100_000, "required": ["words"]}
    command = """python3 -c 'import json; print(json.dumps({"words": ["é" * 100] * 3000}))'"""
    async with running_mesh(tmp_path) as running:
        outcome = await running.mesh.execute({**step("t", command, "shell"), "output_schema": schema})
    assert outcome.failure is None
    assert outcome.structured == value


# Limits.


@pytest.mark.contract("C3", "C39")
async def test_what_is_beyond_a_limit_is_refused_once_and_for_all_naming_the_limit(tmp_path: Path) -> None:
    coordinator = {"limits": {"prompt_bytes": 10 * MEGABYTE, "step_bytes": 12 * MEGABYTE}}
    node = {"step": {"output_bytes": 5 * MEGABYTE}}
    async with running_mesh(tmp_path, coordinator=coordinator, node=node) as running:
        for size, field, limit in [
            (
                11 * MEGABYTE,
                "steps[0].prompt",
                "must be at most 10,000,000 bytes (limits.prompt_bytes), not 11,000,000",
            ),
            (13 * MEGABYTE, "steps[0]", "must be at most 12,000,000 bytes (limits.step_bytes)"),
        ]:
            for run in (running.mesh.parallel([step("t", "x" * size)]), running.mesh.execute(step("t", "x" * size))):
                with pytest.raises(InvalidArgument) as refusal:
                    await run
                assert refusal.value.violations[0].field == field
                assert refusal.value.violations[0].description.startswith(limit)
        (outcome,) = await running.mesh.parallel([step("t", writes(6 * MEGABYTE), "shell", max_attempts=5)])
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.retryable) == (FailureCode.PAYLOAD_TOO_LARGE, False)
    assert "larger than 5,000,000 bytes" in outcome.failure.message
    assert (outcome.attempts, len(outcome.output)) == (1, 5 * MEGABYTE)
    assert (tmp_path / "ran").read_text() == "x\n", "it was not tried again"


# Callers by hand.


def opening(*, takes_parts: bool) -> pb.RunRequest:
    return pb.RunRequest(open=pb.RunOpen(takes_parts=takes_parts, parallel=pb.ParallelRun()))


def part(piece: bytes, field: step_pb2.TextField.ValueType = step_pb2.TEXT_FIELD_PROMPT) -> pb.RunRequest:
    return pb.RunRequest(part=step_pb2.TextPart(field=field, piece=piece))


def batch(*task_ids: str, agent: str = "noop", prompt: str = "") -> pb.RunRequest:
    steps = [step_pb2.AgentStepSpec(task_id=each, agent=agent, description="d", prompt=prompt) for each in task_ids]
    return pb.RunRequest(steps=pb.StepBatch(steps=steps))


async def responses_to(address: str, requests: Iterable[pb.RunRequest]) -> list[pb.RunResponse]:
    async with open_channel(address) as channel:
        try:
            return [response async for response in CoordinatorStub(channel).Run(iter(requests))]
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None


async def test_a_caller_of_any_language_sends_and_takes_large_texts_in_parts(tmp_path: Path) -> None:
    text = NOT_ASCII
    requests = [
        opening(takes_parts=True),
        batch("before", prompt="x"),
        *map(part, pieces_of(text.encode(), 200_000)),
        batch("large", "after", prompt="whole"),
    ]
    requests[-1].steps.steps[0].prompt = ""
    async with running_mesh(tmp_path) as running:
        responses = await responses_to(running.coordinator.address, requests)
    assert max(response.ByteSize() for response in responses) < 2**20
    output, outcomes = b"", {}
    for response in responses:
        assert not (response.HasField("part") and response.events)
        if response.HasField("part"):
            assert response.part.field == step_pb2.TEXT_FIELD_OUTPUT
            output += response.part.piece
        elif output and "large" not in outcomes:
            assert response.events[0].step.event.task_id == "large", "the parts are right ahead of their outcome"
        for event in response.events:
            if event.step.event.HasField("ended"):
                outcomes[event.step.event.task_id] = event.step.event.ended.outcome
    assert output == text.encode()
    assert {task_id: outcome.output for task_id, outcome in outcomes.items()} == {
        "before": "x",
        "large": "",
        "after": "whole",
    }


@pytest.mark.contract("C5", "C3")
async def test_a_caller_that_takes_no_parts_gets_what_any_client_takes_and_is_told_so(tmp_path: Path) -> None:
    commands = {"fits": writes(3 * 2**20), "does not": writes(4 * MEGABYTE)}
    requests = [
        opening(takes_parts=False),
        *(batch(task_id, agent="shell", prompt=command) for task_id, command in commands.items()),
    ]
    async with running_mesh(tmp_path) as running:
        responses = await responses_to(running.coordinator.address, requests)
        async with open_channel(running.coordinator.address) as channel:
            request = pb.CoordinatorExecuteStepRequest(step=requests[-1].steps.steps[0])
            alone = [response async for response in CoordinatorStub(channel).ExecuteStep(request)]
    assert max(response.ByteSize() for response in [*responses, *alone]) < 4 * 2**20
    ended = [event.step.event for response in responses for event in response.events if event.HasField("step")]
    outcomes = {event.task_id: event.ended.outcome for event in ended}
    assert outcomes["fits"].success
    assert len(outcomes["fits"].output) == 3 * 2**20
    for outcome in (outcomes["does not"], alone[-1].events[-1].ended.outcome):
        assert outcome.failure.code == step_pb2.FAILURE_CODE_PAYLOAD_TOO_LARGE
        assert not outcome.failure.retryable
        assert outcome.output == "x" * 3 * 2**20


@pytest.mark.contract("C41")
@pytest.mark.parametrize(
    ("requests", "field"),
    [
        ([part(b"x"), opening(takes_parts=True)], "open"),
        ([opening(takes_parts=True), part(b"x")], "part"),
        ([opening(takes_parts=True), part(b"x", step_pb2.TEXT_FIELD_OUTPUT), batch("t")], "part.field"),
        (
            [opening(takes_parts=True), part(b"x"), part(b"{", step_pb2.TEXT_FIELD_OUTPUT_SCHEMA_JSON), batch("t")],
            "steps[0].output_schema_json",
        ),
        ([opening(takes_parts=True), batch("s", prompt="x"), part(b"x"), batch("t"), batch("u")], "steps[2].prompt"),
    ],
)
async def test_parts_in_the_wrong_place_are_refused_by_field(
    tmp_path: Path, requests: list[pb.RunRequest], field: str
) -> None:
    async with running_mesh(tmp_path) as running:
        with pytest.raises(InvalidArgument) as refusal:
            await responses_to(running.coordinator.address, requests)
    assert field in [violation.field for violation in refusal.value.violations]


@pytest.mark.contract("F22", "C42")
async def test_a_caller_that_does_not_read_its_large_outcomes_keeps_nobody_elses_steps_waiting(tmp_path: Path) -> None:
    size, count = 40 * MEGABYTE, 6
    capacity = {"concurrency_hint": 2, "max_concurrent_steps": 2}
    requests = [opening(takes_parts=True)]
    requests += [batch(str(n), agent="shell", prompt=writes(size, "abcdef"[n])) for n in range(count)]
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(running_mesh(tmp_path, node={"capacity": capacity}))
        channel = await stack.enter_async_context(open_channel(running.coordinator.address))
        call = CoordinatorStub(channel).Run(iter(requests))
        responses: list[Any] = [await call.read()]
        ran = tmp_path / "ran"
        await until(lambda: ran.exists() and len(ran.read_text().split()) >= 3, "steps of it have run")
        await until_idle(running.mesh)
        small = [step(f"small-{n}", f"prompt {n}") for n in range(100)]
        outcomes = await asyncio.wait_for(running.mesh.parallel(small), 20)
        assert [outcome.output for outcome in outcomes] == [f"prompt {n}" for n in range(100)]
        assert len(ran.read_text().split()) < count, "it begins no further step while its caller has much to read"

        while responses[-1] is not grpc.aio.EOF:
            responses.append(await call.read())
    responses.pop()
    assert told_waiting(responses) == "its caller, which has much to read"
    pieces = [response.part.piece for response in responses if response.HasField("part")]
    ended = [event.step.event.ended.outcome for response in responses for event in response.events]
    assert [outcome.success for outcome in ended if outcome.task_id] == [True] * count
    text = b"".join(pieces).decode()
    assert {letter: text.count(letter) for letter in "abcdef"} == dict.fromkeys("abcdef", size)


async def until_idle(mesh: Mesh) -> None:
    """Wait until no step is counted on any node for half a second."""
    idle_since = None
    async with asyncio.timeout(60):
        while idle_since is None or asyncio.get_running_loop().time() - idle_since < 0.5:
            busy = any(view.steps_in_flight for view in await mesh.nodes())
            idle_since = None if busy else idle_since or asyncio.get_running_loop().time()
            await asyncio.sleep(0.05)


def told_waiting(responses: Iterable[Any]) -> str:
    """What a run was said to wait on first."""
    waiting: list[str] = [event.waiting.waiting_on for response in responses for event in response.events]
    return next(reason for reason in waiting if reason)


@pytest.mark.contract("C11")
async def test_progress_goes_on_beyond_the_window_for_a_caller_that_reads(tmp_path: Path) -> None:
    events: list[StepEvent] = []
    count = 3 * PROGRESS_WINDOW
    async with running_mesh(tmp_path) as running:
        await running.mesh.parallel([step("t", str(count), "turns")], on_event=events.append)
    turns = [e.progress.turn for e in events if isinstance(e, StepProgressed) and isinstance(e.progress, TurnFinished)]
    assert len(turns) > 2 * PROGRESS_WINDOW
    assert turns == sorted(turns)
    assert turns[-1] == count


# Links that break.


@dataclass(frozen=True, slots=True)
class Behind:
    """A mesh of one node, which the coordinator reaches through a proxy."""

    mesh: Mesh
    proxy: Proxy


@asynccontextmanager
async def behind_proxy(workspace: Path) -> AsyncIterator[Behind]:
    async with AsyncExitStack() as stack:
        config = node_config(workspace, "node-1", "127.0.0.1:1", {"announce_to": []})
        node = await stack.enter_async_context(running_node(config, Supervision.spawn({"PATH": "/usr/bin:/bin"}), {}))
        proxy = await stack.enter_async_context(proxied(node.address))
        sources = {"static": [proxy.address], "redial_delay": 0.2}
        coordinator = await stack.enter_async_context(coordinator_alone(nodes=sources, placement={"unplaceable": 20}))
        mesh = await stack.enter_async_context(Mesh(coordinator.address))
        await until_ready(mesh, 1)
        yield Behind(mesh, proxy)


@pytest.mark.contract("F2", "C6")
async def test_a_link_that_breaks_amid_a_prompt_costs_the_step_no_attempt(tmp_path: Path) -> None:
    async with behind_proxy(tmp_path) as behind:
        behind.proxy.cut_after(20 * MEGABYTE)
        (outcome,) = await behind.mesh.parallel([step("t", LARGE, max_attempts=1)])
        assert behind.proxy.has_happened()
    assert outcome.failure is None
    assert outcome.attempts == 1
    assert digest(outcome.output) == digest(LARGE)


@pytest.mark.contract("F2", "F6")
async def test_a_link_that_breaks_amid_an_outcome_is_told_it_anew_by_the_next(tmp_path: Path) -> None:
    async with behind_proxy(tmp_path) as behind:
        behind.proxy.cut_after(20 * MEGABYTE)
        (outcome,) = await behind.mesh.parallel([step("t", writes(50 * MEGABYTE), "shell", max_attempts=1)])
        assert behind.proxy.has_happened()
    assert outcome.failure is None
    assert outcome.attempts == 1
    assert outcome.output == "x" * 50 * MEGABYTE
    assert (tmp_path / "ran").read_text() == "x\n", "it ran once"


@pytest.mark.contract("F1")
async def test_a_run_that_is_cancelled_amid_large_texts_leaves_nothing_behind(tmp_path: Path) -> None:
    async with behind_proxy(tmp_path) as behind:
        for agent, prompt in [("noop", LARGE), ("shell", writes(50 * MEGABYTE))]:
            behind.proxy.hold_up_after(20 * MEGABYTE)
            run = asyncio.ensure_future(behind.mesh.parallel([step("t", prompt, agent)]))
            await until(behind.proxy.has_happened, "the texts are on their way")
            run.cancel()
            behind.proxy.heal()
            await asyncio.wait([run])
            await until_idle(behind.mesh)
        (outcome,) = await behind.mesh.parallel([step("t", "still here")])
    assert outcome.output == "still here"


# A node asked directly.


async def test_a_node_that_is_asked_directly_takes_and_gives_large_texts(tmp_path: Path) -> None:
    spec = step_pb2.AgentStepSpec(task_id="t", agent="noop", description="d", prompt=LARGE)
    request = node_pb.ExecutorNodeExecuteStepRequest(step=spec, takes_parts=True)
    async with running_mesh(tmp_path) as running, open_channel(running.nodes[0].address) as channel:
        responses = [response async for response in ExecutorNodeStub(channel).ExecuteStep(request)]
    assert max(response.ByteSize() for response in responses) < 2**20
    assert b"".join(response.part.piece for response in responses) == LARGE.encode()
    assert responses[-1].events[-1].ended.outcome.success
