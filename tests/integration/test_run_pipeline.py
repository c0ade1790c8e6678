"""`Coordinator.RunPipeline` over real services, by a caller that answers by hand (C14, C15, C41)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fanfold.errors import Aborted, InvalidArgument
from fanfold.feed import Feed
from fanfold.model.pipeline import StageRequest
from fanfold.model.step import AgentStepSpec, StepOutcome
from fanfold.rpc.channels import open_channel
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1 import run_pb2
from fanfold.v1.coordinator_pb2_grpc import CoordinatorStub
from support.mesh import RunningMesh, running_mesh, until
from support.pipelines import answer, calling, items, opened, step

pytestmark = pytest.mark.process


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningMesh]:
    limits = {"items": 5000, "stages": 10, "prompt_bytes": 1000, "step_bytes": 10_000, "run_bytes": 1_000_000}
    settings = {"limits": limits, "placement": {"agent_unknown": 0.2}}
    async with running_mesh(tmp_path, coordinator=settings) as up:
        yield up


async def until_none_in_flight(running: RunningMesh) -> None:
    async with asyncio.timeout(20):
        while [view.steps_in_flight for view in await running.mesh.nodes()] != [0]:
            await asyncio.sleep(0.01)


@pytest.mark.contract("C14", "C39", "C41")
@pytest.mark.parametrize(
    ("requests", "field", "told"),
    [
        ([], "open", "must be sent first"),
        ([items("1")], "open", "must be sent first"),
        ([opened(stages=0), items("1")], "open.stages", "must be 1 to 10 stages (limits.stages), not 0"),
        ([opened(stages=11), items("1")], "open.stages", "must be 1 to 10 stages (limits.stages), not 11"),
        ([opened(timeout=0), items("1")], "open.stage_timeout", "must be above 0"),
        ([opened(timeout=7e8), items("1")], "open.stage_timeout", "at most 604,800 seconds"),
        ([opened(request_id="x" * 129), items("1")], "open.request_id", "at most 128 characters"),
        ([opened()], "items", "ended without a batch"),
        ([opened(), items("1", last=False)], "items", "ended without a batch"),
        ([opened(), items("1", last=False), items("1", "{", "2")], "items[2]", "must be JSON"),
        ([opened(), items("NaN")], "items[0]", "NaN is no JSON value"),
        ([opened(), items("[" * 65 + "]" * 65)], "items[0]", "at most 64 deep"),
        ([opened(), items(*["1"] * 5001)], "items", "at most 5,000 items (limits.items)"),
        ([opened(), items(f'"{"x" * 1_000_000}"')], "items", "at most 1,000,000 bytes (limits.run_bytes)"),
        ([opened(), opened()], "", "items must follow"),
        ([opened(), items("1"), items("2")], "", "nothing but answers may follow the items"),
        ([opened(), items("1"), opened()], "", "nothing but answers may follow the items"),
    ],
)
async def test_a_wrong_request_is_refused_by_field_and_limit(
    running: RunningMesh, requests: list[pb.RunPipelineRequest], field: str, told: str
) -> None:
    async with calling(running, *requests) as caller:
        caller.close()
        with pytest.raises(InvalidArgument) as caught:
            await caller.to_end()
    assert told in str(caught.value)
    assert [violation.field for violation in caught.value.violations] == ([field] if field else [])
    await until_none_in_flight(running)


@pytest.mark.contract("C14")
async def test_requests_come_as_items_get_there_and_answers_in_any_order(running: RunningMesh) -> None:
    async with calling(running, opened(stages=3), items('"a"', last=False), items('{"b": 1}')) as caller:
        await caller.until(lambda caller: len(caller.requests) == 2)
        a, b = caller.requests
        assert [(one.id, one.index, one.stage, one.HasField("previous")) for one in (a, b)] == [
            (1, 0, 0, False),
            (2, 1, 0, False),
        ]
        caller.answer(answer(b, step("first of b")))
        await caller.until(lambda caller: len(caller.requests) == 3)
        following = caller.requests[2]
        assert (following.id, following.index, following.stage) == (3, 1, 1)
        assert (following.previous.output, following.previous.success) == ("first of b", True)
        caller.answer(answer(following), answer(a, step("first of a")))
        await caller.until(lambda caller: len(caller.requests) == 4)
        assert (caller.requests[3].index, caller.requests[3].stage) == (0, 1)
        caller.answer(answer(caller.requests[3]))
        await caller.to_end()
    assert caller.told("started")[0].total_steps == 0
    outputs = {step.index: step.event.ended.outcome.output for step in caller.told("step_ended")}
    assert outputs == {0: "first of a", 1: "first of b"}
    run = caller.ended.run
    assert (run.kind, run.state) == (run_pb2.RUN_KIND_PIPELINE, run_pb2.RUN_STATE_COMPLETED)
    assert (run.steps.total, run.steps.running, run.steps.succeeded, run.steps.failed) == (2, 0, 2, 0)


@pytest.mark.contract("C14")
async def test_no_items_are_a_pipeline_too(running: RunningMesh) -> None:
    async with calling(running, opened(), items()) as caller:
        await caller.to_end()
    assert [event.WhichOneof("event") for event in caller.events] == ["started", "ended"]


@pytest.mark.contract("C14")
async def test_one_items_second_stage_begins_while_another_items_first_one_runs(
    running: RunningMesh, tmp_path: Path
) -> None:
    def respond(request: pb.StageRequest) -> pb.StageAnswer:
        gate = "while [ ! -e gate ]; do sleep 0.02; done"
        command = gate if (request.index, request.stage) == (1, 0) else "echo done"
        return answer(request, step(command, f"stage {request.stage}", "shell"))

    async with calling(running, opened(stages=2), items('"a"', '"b"')) as caller:
        while not [one for one in caller.told("step_started") if (one.index, one.stage) == (0, 1)]:
            await caller.read()
            caller.respond(respond)
        assert not [one for one in caller.told("step_ended") if one.index == 1], "b's first stage is held by the gate"
        (tmp_path / "gate").touch()
        await caller.to_end(respond)
    order = [
        (event.step.index, event.step.stage, event.step.event.WhichOneof("event"))
        for event in caller.events
        if event.HasField("step")
    ]
    assert order.index((0, 1, "started")) < order.index((1, 0, "ended"))
    assert sorted(order) == sorted(
        (index, stage, kind) for index in range(2) for stage in range(2) for kind in ("started", "ended")
    )


@pytest.mark.contract("C14")
async def test_items_whose_steps_have_the_same_task_id_at_once_are_different_steps(running: RunningMesh) -> None:
    def respond(request: pb.StageRequest) -> pb.StageAnswer:
        return answer(request, step(f"sleep 0.3; echo {request.index}", "same", "shell"))

    async with calling(running, opened(), items(*map(str, range(4)))) as caller:
        await caller.to_end(respond)
    outputs = {one.index: one.event.ended.outcome.output for one in caller.told("step_ended")}
    assert {index: output.strip() for index, output in outputs.items()} == {index: str(index) for index in range(4)}


BAD_ANSWERS: list[tuple[dict[str, Any], str]] = [
    ({"error": "no idea"}, "no idea"),
    ({"error": ""}, "the stage failed"),
    ({"error": "x" * 10_000}, "x" * 1_999 + "…"),
    ({"nothing": True}, "the answer has neither step, nor end, nor error"),
    ({"step": step("")}, "step.prompt: must not be empty"),
    ({"step": step(task_id="")}, "step.task_id: must not be empty"),
    ({"step": step("x" * 1001)}, "step.prompt: must be at most 1,000 bytes (limits.prompt_bytes), not 1,001"),
    ({"step": step("x" * 10_000)}, "step: must be at most 10,000 bytes (limits.step_bytes)"),
    ({"step": step(max_steps=0)}, "step.max_steps: must be greater than or equal to 1"),
    ({"step": step(output_schema_json="{")}, "step.output_schema_json: must be JSON"),
    ({"step": step(output_schema_json='{"type": "nonsense"}')}, "step.output_schema: "),
]


@pytest.mark.contract("C15", "C20", "C39")
@pytest.mark.parametrize(("bad", "error"), BAD_ANSWERS)
async def test_a_bad_answer_ends_its_own_chain_and_is_told_by_field(
    running: RunningMesh, bad: dict[str, Any], error: str
) -> None:
    def respond(request: pb.StageRequest) -> pb.StageAnswer:
        if (request.index, request.stage) == (1, 1):
            return pb.StageAnswer(id=request.id, **{k: v for k, v in bad.items() if k != "nothing"})
        return answer(request, step(f"{request.index}.{request.stage}", f"t{request.stage}"))

    async with calling(running, opened(stages=2), items("1", "2", "3")) as caller:
        await caller.to_end(respond)
    (failed,) = caller.told("stage_failed")
    assert (failed.index, failed.stage) == (1, 1)
    assert failed.error.startswith(error)
    last = {one.index: one.event.ended.outcome.output for one in caller.told("step_ended")}
    assert last == {0: "0.1", 1: "1.0", 2: "2.1"}
    numbers = [event.sequence for event in caller.events if event.WhichOneof("event") != "waiting"]
    assert numbers == sorted(set(numbers))
    assert caller.ended.run.state == run_pb2.RUN_STATE_COMPLETED


@pytest.mark.contract("C14", "C15")
async def test_a_task_id_that_the_item_has_had_is_the_stages_failure(running: RunningMesh) -> None:
    async with calling(running, opened(stages=2), items("1")) as caller:
        await caller.to_end(lambda request: answer(request, step()))
    (failed,) = caller.told("stage_failed")
    assert (failed.stage, failed.error) == (
        1,
        "step.task_id: 't' is already the task id of another step of this item",
    )


@pytest.mark.contract("C15", "F4")
async def test_no_answer_in_time_ends_that_chain_and_a_late_one_is_ignored(running: RunningMesh) -> None:
    async with calling(running, opened(timeout=0.3), items("1", "2")) as caller:
        await caller.until(lambda caller: len(caller.requests) == 2)
        never, good = caller.requests
        await caller.until(lambda caller: bool(caller.told("stage_failed")))
        assert {failed.error for failed in caller.told("stage_failed")} == {"the stage did not answer within 0.3 s"}
        caller.answer(answer(never, step()), answer(good, step()))
        await caller.to_end()
    assert sorted(failed.index for failed in caller.told("stage_failed")) == [0, 1]
    assert caller.told("step_started") == []
    assert caller.ended.run.state == run_pb2.RUN_STATE_COMPLETED


@pytest.mark.contract("C15")
async def test_answers_that_cross_with_the_runs_end_harm_nobody(running: RunningMesh) -> None:
    for _ in range(20):
        async with calling(running, opened(timeout=0.05), items("1")) as caller:
            caller.close_at_end = False
            await caller.until(lambda caller: bool(caller.told("ended")))
            caller.answer(answer(caller.requests[0], step()))
            await asyncio.sleep(0)
            caller.answer(answer(caller.requests[0], step()))
            caller.close()
            await caller.to_end()
        assert len(caller.told("stage_failed")) == 1


@pytest.mark.contract("C15")
async def test_the_first_answer_counts(running: RunningMesh) -> None:
    async with calling(running, opened(), items("1")) as caller:
        await caller.until(lambda caller: len(caller.requests) == 1)
        (request,) = caller.requests
        caller.answer(answer(request, step("first")), answer(request, step("second")))
        caller.answer(answer(request))
        await caller.to_end()
    assert [one.event.ended.outcome.output for one in caller.told("step_ended")] == ["first"]


@pytest.mark.contract("C41", "F1")
async def test_an_answer_that_nothing_asked_for_cancels_the_run(running: RunningMesh, tmp_path: Path) -> None:
    async with calling(running, opened(), items("1")) as caller:
        await caller.until(lambda caller: len(caller.requests) == 1)
        caller.answer(answer(caller.requests[0], step("touch began; sleep 600", agent="shell")))
        await until((tmp_path / "began").exists, "the step runs")
        caller.answer(pb.StageAnswer(id=77, end=pb.EndOfChain()))
        with pytest.raises(InvalidArgument) as caught:
            await caller.to_end()
    assert [str(violation) for violation in caught.value.violations] == ["answers.id: no stage request has the id 77"]
    await until_none_in_flight(running)


@pytest.mark.contract("C14", "F1")
@pytest.mark.parametrize("leave", ["close its side", "cancel"])
async def test_a_caller_that_leaves_early_has_its_run_cancelled_and_its_steps_gone(
    running: RunningMesh, tmp_path: Path, leave: str
) -> None:
    command = "trap '' TERM; echo $$ >> pids; sleep 600 & sleep 600"
    pids_file = tmp_path / "pids"
    async with calling(running, opened(stages=2), items("1", "2", "3")) as caller:
        await caller.until(lambda caller: len(caller.requests) == 3)
        caller.answer(*(answer(request, step(command, agent="shell")) for request in caller.requests[:2]))
        await until(lambda: pids_file.exists() and len(pids_file.read_text().split()) == 2, "two commands run")
        if leave == "cancel":
            caller.call.cancel()
        else:
            caller.close()
            await caller.to_end()
            run = caller.ended.run
            assert run.state == run_pb2.RUN_STATE_CANCELLED
            assert run.reason == "its caller closed its side of the stream before the run had ended"
        pids = pids_file.read_text().split()
        await until(lambda: not any(Path("/proc", pid).exists() for pid in pids), "the commands are gone")
    await until_none_in_flight(running)


@pytest.mark.contract("C44")
async def test_a_request_id_that_is_under_way_is_not_started_twice(running: RunningMesh) -> None:
    request = [opened(request_id="r-1"), items("1")]
    async with calling(running, *request) as first:
        await first.until(lambda caller: len(caller.requests) == 1)
        async with calling(running, *request) as second:
            with pytest.raises(Aborted, match="'r-1' is under way since"):
                await second.to_end()
        first.answer(answer(first.requests[0]))
        await first.to_end()
    async with calling(running, *request) as third:
        await third.to_end(answer)


@pytest.mark.contract("C15")
async def test_no_more_requests_come_at_once_than_the_caller_wants(running: RunningMesh) -> None:
    async with calling(running, opened(max_requests=2), items(*map(str, range(20)))) as caller:
        answered: list[int] = []
        while len(answered) < 20:
            await caller.until(lambda caller: len(caller.requests) > len(answered))
            assert len(caller.requests) - len(answered) <= 2
            request = caller.requests[len(answered)]
            answered.append(request.index)
            caller.answer(answer(request))
        await caller.to_end()
    assert answered == list(range(20))


@pytest.mark.contract("C42")
async def test_a_run_that_waits_for_its_callers_answer_says_so(running: RunningMesh) -> None:
    async with calling(running, opened(), items("1")) as caller:
        await caller.until(lambda caller: bool(caller.told("waiting")))
        assert caller.told("waiting")[0].waiting_on == "its caller, who is to answer for stages"
        caller.answer(answer(caller.requests[0], step("600", agent="sleep")))
        await caller.until(lambda caller: len(caller.told("waiting")) == 2)
        assert caller.told("waiting")[1].waiting_on == ""
    await until_none_in_flight(running)


@pytest.mark.contract("F15")
async def test_a_caller_that_does_not_read_makes_no_heap_of_outcomes(tmp_path: Path) -> None:
    # 200 outputs of half a MiB, and each again in the request that follows; what is not read is bounded.
    def respond(request: pb.StageRequest) -> pb.StageAnswer:
        if request.stage:
            return answer(request)
        return answer(request, step("head -c 500000 /dev/zero | tr '\\0' x", agent="shell"))

    count = 200
    async with running_mesh(tmp_path, node={"capacity": {"concurrency_hint": 4}}) as running:
        async with calling(running, opened(stages=2, max_requests=1000), items(*["1"] * count)) as caller:
            while not caller.told("step_ended"):
                await caller.read()
                caller.respond(respond)
            held: list[int] = []
            for _ in range(15):  # it comes to a standstill, because nobody reads
                await asyncio.sleep(0.1)
                held.append(sum(len(one.output) for one in gc.get_objects() if type(one) is StepOutcome))
            assert max(held) < 80 * 2**20
            await caller.to_end(respond)
        assert len(caller.told("step_ended")) == count
        assert caller.ended.run.state == run_pb2.RUN_STATE_COMPLETED


class Thrifty:
    """A caller that keeps no more than each item's last output, and says what its process holds meanwhile."""

    KINDS = (AgentStepSpec, StepOutcome, StageRequest)

    def __init__(self, count: int, item: str) -> None:
        self._count = count
        self._item = item
        self._answers: Feed[pb.RunPipelineRequest] = Feed()
        self.outputs: dict[int, str] = {}
        self.run = run_pb2.Run()
        self.most_held = 0

    async def call(self, address: str) -> None:
        async with open_channel(address) as channel:
            number = 0
            async for response in CoordinatorStub(channel).RunPipeline(self._requests()):
                if number % 500 == 0:
                    held = sum(type(one) in self.KINDS for one in gc.get_objects())
                    self.most_held = max(self.most_held, held)
                number += 1
                self._hear(response)

    async def _requests(self) -> AsyncIterator[pb.RunPipelineRequest]:
        yield opened(stages=2, events=run_pb2.EVENT_DETAIL_OUTCOMES)
        for first in range(0, self._count, 50):
            yield items(*[self._item] * 50, last=first + 50 == self._count)
        while messages := await self._answers.read():
            for message in messages:
                yield message

    def _hear(self, response: pb.RunPipelineResponse) -> None:
        for event in response.events:
            if event.step.event.HasField("ended"):
                self.outputs[event.step.index] = event.step.event.ended.outcome.output
            if event.HasField("ended"):
                self.run = event.ended.run
                self._answers.close()
        if response.requests:
            answers = pb.StageAnswers(answers=map(self._answer_to, response.requests))
            self._answers.push(pb.RunPipelineRequest(answers=answers))

    def _answer_to(self, request: pb.StageRequest) -> pb.StageAnswer:
        return answer(request, step(f"{request.index}/{request.previous.output}", f"t{request.stage}"))


@pytest.mark.timeout(300)
@pytest.mark.contract("C14", "C39")
async def test_ten_thousand_items_are_held_only_while_they_are_under_way(tmp_path: Path) -> None:
    count = 10_000
    caller = Thrifty(count, '"x"')
    gc.collect()
    before = sum(type(one) in Thrifty.KINDS for one in gc.get_objects())
    async with running_mesh(tmp_path, node={"capacity": {"concurrency_hint": 32}}) as running:
        await caller.call(running.coordinator.address)
    assert (caller.run.steps.total, caller.run.steps.succeeded) == (2 * count, 2 * count)
    assert caller.outputs == {index: f"{index}/{index}/" for index in range(count)}
    # 32 steps are wanted at once, so 64 items are under way, on the coordinator and once more on the node.
    assert 0 < caller.most_held - before < 1000


@pytest.mark.contract("C7", "C39")
async def test_nothing_but_its_hash_is_held_of_an_item(tmp_path: Path) -> None:
    count, size = 1000, 200_000

    async def requests() -> AsyncIterator[pb.RunPipelineRequest]:
        yield opened()
        for number in range(count):
            yield items(f'"{"x" * size}"', last=number == count - 1)
        await asyncio.Event().wait()

    process = psutil.Process()
    async with running_mesh(tmp_path) as running, open_channel(running.coordinator.address) as channel:
        before = process.memory_info().rss
        call = CoordinatorStub(channel).RunPipeline(requests())
        response = await asyncio.wait_for(call.read(), 60)
        grown = process.memory_info().rss - before
        call.cancel()
    assert isinstance(response, pb.RunPipelineResponse)
    assert response.events[0].HasField("started")
    assert grown < count * size / 4, "of 200 MB that were sent"
