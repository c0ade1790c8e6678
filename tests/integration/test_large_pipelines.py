"""Large texts through a pipeline: in parts both ways, and within limits that are named (C39, F11)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from fanfold import StageContext
from fanfold.errors import InvalidArgument
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.v1 import step_pb2
from support.mesh import RunningMesh, running_mesh
from support.pipelines import answer, calling, items, opened, step

pytestmark = [pytest.mark.process, pytest.mark.contract("F11")]

MEGABYTE = 1_000_000


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningMesh]:
    limits = {"prompt_bytes": 10 * MEGABYTE, "step_bytes": 12 * MEGABYTE}
    # All of the mesh shares this test's loop, which large texts hold up: nobody is to lose patience over that.
    async with running_mesh(tmp_path, coordinator={"limits": limits, "placement": {}}) as up:
        yield up


def echo(task_id: str, prompt: str) -> dict[str, Any]:
    return {"task_id": task_id, "agent": "noop", "description": "d", "prompt": prompt}


@pytest.mark.contract("C14")
async def test_large_prompts_and_outcomes_go_from_stage_to_stage(running: RunningMesh) -> None:
    texts = {"large": "".join(f"{number:09}," for number in range(900_000)), "é": "aé漢😀" * 100_000, "small": "x"}

    def first(ctx: StageContext) -> dict[str, Any]:
        return echo("first", texts[ctx.item])

    def second(ctx: StageContext) -> dict[str, Any]:
        return echo("second", ctx["previous"]["output"] + "!")

    result = await running.mesh.pipeline(list(texts), [first, second])
    assert result.failures == ()
    for outcome, text in zip(result, texts.values(), strict=True):
        assert outcome is not None
        assert outcome.failure is None
        assert digest(outcome.output) == digest(text + "!")


@pytest.mark.contract("C15", "C39")
async def test_a_prompt_beyond_a_limit_ends_its_own_chain_and_names_the_limit(running: RunningMesh) -> None:
    def stage(ctx: StageContext) -> dict[str, Any]:
        return echo("t", "é" * (ctx.item // 2))

    result = await running.mesh.pipeline([11 * MEGABYTE, 14 * MEGABYTE, 10], [stage])
    errors = {failure.index: failure.error for failure in result.failures}
    assert errors.keys() == {0, 1}
    assert errors[0] == "step.prompt: must be at most 10,000,000 bytes (limits.prompt_bytes), not 11,000,000"
    assert errors[1].startswith("step: must be at most 12,000,000 bytes (limits.step_bytes), not 14,0")
    assert result[2] is not None
    assert result[2].output == "é" * 5


@pytest.mark.contract("C15")
async def test_a_caller_who_takes_no_parts_gets_cut_outcomes_and_no_stage_about_them(running: RunningMesh) -> None:
    def respond(request: pb.StageRequest) -> pb.StageAnswer:
        command = "head -c 5000000 /dev/zero | tr '\\0' x" if request.index else "echo small"
        return answer(request, step(command, f"t{request.stage}", "shell"))

    async with calling(running, opened(stages=2), items("1", "2")) as caller:
        await caller.to_end(respond)
    ended = {(one.index, one.stage): one.event.ended.outcome for one in caller.told("step_ended")}
    assert ended.keys() == {(0, 0), (0, 1), (1, 0)}
    assert ended[1, 0].failure.code == step_pb2.FAILURE_CODE_PAYLOAD_TOO_LARGE
    assert len(ended[1, 0].output) == 3 * 2**20
    (failed,) = caller.told("stage_failed")
    assert (failed.index, failed.stage) == (1, 1)
    assert failed.error.startswith("the outcome before has 5,000,000 bytes, and its caller takes no parts")


def part(piece: bytes, field: step_pb2.TextField.ValueType = step_pb2.TEXT_FIELD_PROMPT) -> pb.RunPipelineRequest:
    return pb.RunPipelineRequest(part=step_pb2.TextPart(field=field, piece=piece))


@pytest.mark.contract("C15")
async def test_parts_belong_to_the_first_answer_that_follows(running: RunningMesh) -> None:
    async with calling(running, opened(), items("1", "2", "3")) as caller:
        await caller.until(lambda caller: len(caller.requests) == 3)
        caller.send(part("é".encode()[:1]))
        caller.send(part("é".encode()[1:] + b"!"))
        caller.answer(answer(caller.requests[0], step("")), answer(caller.requests[1], step("small")))
        caller.send(part("é".encode()[:1]))
        caller.answer(answer(caller.requests[2], step("")))
        await caller.to_end()
    outputs = {one.index: one.event.ended.outcome.output for one in caller.told("step_ended")}
    assert outputs == {0: "é!", 1: "small"}
    (failed,) = caller.told("stage_failed")
    assert failed.index == 2
    assert failed.error.startswith("a part of a text is not UTF-8")


@pytest.mark.contract("C41")
async def test_a_part_of_what_no_step_has_is_refused(running: RunningMesh) -> None:
    async with calling(running, opened(), items("1")) as caller:
        await caller.until(lambda caller: len(caller.requests) == 1)
        caller.send(part(b"x", step_pb2.TEXT_FIELD_OUTPUT))
        with pytest.raises(InvalidArgument, match=r"part\.field"):
            await caller.to_end()
