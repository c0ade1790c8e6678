"""Nodes that say what they should not: it costs a step at most, and never the coordinator (C2, C9, C12)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from fanfold import Mesh
from fanfold.model.node import NodeState
from fanfold.model.step import FailureCode, StepEvent
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.v1 import step_pb2
from support.mesh import coordinator_alone, until, until_ready
from support.silence import nothing_logged_as_error
from support.strange import StrangeNode, ended, serving_node, well_done

pytestmark = pytest.mark.process

BEYOND_TIME = 2**60
"""Seconds since 1970, at which there is no year that RFC 3339 could name."""


@asynccontextmanager
async def mesh_of(*nodes: StrangeNode, lease: float = 10) -> AsyncIterator[Mesh]:
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(serving_node(node)) for node in nodes]
        sources = {"static": addresses, "redial_delay": 0.1, "lease": lease}
        coordinator = await stack.enter_async_context(coordinator_alone(nodes=sources))
        mesh = await stack.enter_async_context(Mesh(coordinator.address))
        await until_ready(mesh, len(nodes))
        yield mesh


def step(task_id: str) -> dict[str, str]:
    return {"task_id": task_id, "agent": "noop", "description": "d", "prompt": "x"}


def outcome(start: pb.StartExecution) -> step_pb2.StepOutcome:
    return step_pb2.StepOutcome(task_id=start.step.task_id, agent="noop", success=True, output="done", attempts=1)


def unreadable(start: pb.StartExecution) -> Iterable[step_pb2.StepEvent]:
    """Ends that cannot be read, each for a reason that its step is called by; other steps end well."""
    told, now = outcome(start), ended(outcome(start))
    match start.step.task_id:
        case "structured":
            told.structured_json = "{"
        case "not-a-value":
            told.structured_json = "NaN"
        case "too-deep":
            told.structured_json = "[" * 100_000
        case "ended-at":
            told.ended_at.seconds = BEYOND_TIME
        case "started-at":
            told.started_at.seconds = -BEYOND_TIME
        case "event-time":
            now.time.seconds = BEYOND_TIME
        case "bad-start":
            started = step_pb2.StepEvent(task_id="bad-start", started=step_pb2.StepStarted(node="n"))
            started.time.seconds = BEYOND_TIME
            yield started
    now.ended.outcome.CopyFrom(told)
    yield now


@pytest.mark.contract("C2", "C3", "C9", "C12")
async def test_an_end_that_cannot_be_read_is_the_failure_of_its_step_alone() -> None:
    bad = ["structured", "not-a-value", "too-deep", "ended-at", "started-at", "event-time"]
    good = ["a", "bad-start", "b"]
    async with mesh_of(StrangeNode(answer=unreadable)) as mesh:
        events: list[StepEvent] = []
        with nothing_logged_as_error():
            result = await mesh.parallel([step(each) for each in [*bad, *good]], on_event=events.append)
        failures = {one.task_id: one.failure for one in result if not one.success}
        assert sorted(failures) == sorted(bad)
        for one in result[: len(bad)]:
            assert one.failure is not None
            assert one.failure.code is FailureCode.INTERNAL
            assert one.failure.message.startswith("the node's outcome cannot be read: ")
            assert (one.agent, one.attempts, one.structured) == ("noop", 1, None)
        assert [one.output for one in result[len(bad) :]] == ["done"] * len(good)
        assert [view.state for view in await mesh.nodes()] == [NodeState.READY], "its link went on"
        assert (await mesh.parallel([step("again")]))[0].success


def inconsistent(start: pb.StartExecution) -> Iterable[step_pb2.StepEvent]:
    told = outcome(start)
    match start.step.task_id:
        case "somebody-elses":
            told.task_id, told.agent = "other", "other-agent"
        case "nobodys":
            told.task_id, told.agent = "", ""
        case "success-with-failure":
            told.failure.CopyFrom(step_pb2.StepFailure(code=step_pb2.FAILURE_CODE_CRASHED, message="m"))
        case "failure-without-reason":
            told.success = False
    yield ended(told)


@pytest.mark.contract("C2")
async def test_an_outcome_is_made_to_say_what_outcomes_promise() -> None:
    async with mesh_of(StrangeNode(answer=inconsistent)) as mesh:
        ids = ["somebody-elses", "nobodys", "success-with-failure", "failure-without-reason", "sound"]
        result = await mesh.parallel([step(each) for each in ids])
    assert [one.task_id for one in result] == ids
    assert [one.agent for one in result] == ["noop"] * len(ids)
    assert [one.success for one in result] == [True, True, True, False, True]
    assert [one.failure is None for one in result] == [True, True, True, False, True]
    failure = result[3].failure
    assert failure is not None
    assert (failure.code, failure.message) == (FailureCode.INTERNAL, "the node does not say why")


def large(start: pb.StartExecution) -> Iterable[step_pb2.StepEvent]:
    """An end with a large output for the step `large`, and with a small one for others."""
    told = outcome(start)
    if start.step.task_id == "large":
        told.output = "x" * 2**20
    yield ended(told)


async def test_ends_are_acknowledged_with_the_next_start_and_large_ones_at_once() -> None:
    node = StrangeNode(answer=large)
    async with mesh_of(node, lease=300) as mesh:
        await mesh.execute(step("a"))
        await mesh.execute(step("b"))
        assert node.acknowledged == [node.received[0].execution_id]
        await mesh.execute(step("large"))
        await until(lambda: len(node.acknowledged) == 3, "the large end is acknowledged")
        await mesh.parallel([step(str(number)) for number in range(1000)])
    told = [start.execution_id for start in node.received]
    assert node.acknowledged == told[: len(node.acknowledged)], "each once, as they ended"
    assert len(node.acknowledged) > 900


@pytest.mark.contract("F15")
async def test_the_last_end_is_acknowledged_with_a_renewal() -> None:
    node = StrangeNode()
    async with mesh_of(node, lease=1.5) as mesh:
        await mesh.execute(step("a"))
        await until(lambda: node.acknowledged == [node.received[0].execution_id], "the end is acknowledged", 10)


def beside_the_point(start: pb.StartExecution) -> Iterable[step_pb2.StepEvent]:
    """The end twice, with what should not come after it, and a kind of event that only a newer node knows."""
    yield step_pb2.StepEvent(task_id=start.step.task_id)
    (end,) = well_done(start)
    yield end
    yield step_pb2.StepEvent(task_id=start.step.task_id, started=step_pb2.StepStarted(node="late"))
    (again,) = well_done(start)
    again.ended.outcome.output = "another end"
    yield again


@pytest.mark.contract("C11")
async def test_the_first_end_counts_and_nothing_comes_after_it() -> None:
    async with mesh_of(StrangeNode(answer=beside_the_point)) as mesh:
        events: list[StepEvent] = []
        ids = [str(number) for number in range(20)]
        result = await mesh.parallel([step(each) for each in ids], on_event=events.append)
        assert [one.output for one in result] == ["done"] * 20
        for each in ids:
            kinds = [type(event).__name__ for event in events if event.task_id == each]
            assert kinds == ["StepStarted", "StepEnded"]


@pytest.mark.contract("C12")
async def test_two_nodes_of_one_name_do_not_disturb_each_other() -> None:
    first, second = StrangeNode(), StrangeNode()
    async with serving_node(first) as one, serving_node(second) as other:
        sources = {"static": [one, other], "redial_delay": 0.1}
        async with coordinator_alone(nodes=sources) as coordinator, Mesh(coordinator.address) as mesh:
            await until_ready(mesh, 1)
            result = await mesh.parallel([step(str(number)) for number in range(20)])
            assert all(one.success for one in result)
    assert sorted([len(first.received), len(second.received)]) == [0, 20]
