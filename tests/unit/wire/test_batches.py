"""Messages that carry batches stay below what their receivers take (F11)."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from fanfold.v1 import coordinator_pb2 as pb
from fanfold.wire.batches import MAX_BATCH_BYTES, MAX_BATCH_ELEMENTS, batches


def cut(prompts: list[str], **limits: int) -> list[pb.RunRequest]:
    def add(prompt: str, request: pb.RunRequest) -> Message:
        step = request.steps.steps.add()
        step.prompt = prompt
        return step

    return list(batches(prompts, pb.RunRequest, add, **limits))


@pytest.mark.contract("F11")
@pytest.mark.parametrize("size", [1, 1000, 200_000, MAX_BATCH_BYTES - 10, 3 * MAX_BATCH_BYTES])
def test_a_message_ends_with_the_element_that_fills_it(size: int) -> None:
    count = 2500 if size <= 1000 else 12
    prompts = [f"{number:x}".ljust(size, ".")[:size] for number in range(count)]
    messages = cut(prompts)
    assert [step.prompt for message in messages for step in message.steps.steps] == prompts
    for message in messages:
        steps = message.steps.steps
        assert 1 <= len(steps) <= MAX_BATCH_ELEMENTS
        assert sum(step.ByteSize() for step in steps[:-1]) < MAX_BATCH_BYTES
    for message in messages[:-1]:
        full = len(message.steps.steps) == MAX_BATCH_ELEMENTS
        assert full or sum(step.ByteSize() for step in message.steps.steps) >= MAX_BATCH_BYTES


def test_nothing_makes_no_message() -> None:
    assert cut([]) == []


def test_exactly_one_batch_is_followed_by_none() -> None:
    assert [len(message.steps.steps) for message in cut(["x"] * MAX_BATCH_ELEMENTS)] == [MAX_BATCH_ELEMENTS]


def test_limits_of_the_caller_hold_instead() -> None:
    assert [len(message.steps.steps) for message in cut(["x"] * 7, max_elements=3)] == [3, 3, 1]
    assert [len(message.steps.steps) for message in cut(["x" * 100] * 5, max_bytes=200)] == [2, 2, 1]
