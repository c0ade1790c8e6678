"""Large texts over a link, at the node's end: credit before parts, small things ahead, and nothing left of a break."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fanfold.rpc.channels import open_channel
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.v1 import step_pb2
from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeStub
from support.links import OUTPUT, HandLink, hand_link, start
from support.mesh import running_mesh

if TYPE_CHECKING:
    from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeAsyncStub

pytestmark = pytest.mark.process

MOST = 256 * 1024
TEXT = "ж" * 300_000 + "x" * 100_000
SIZE = len(TEXT.encode())


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[ExecutorNodeAsyncStub]:
    settings = {
        "capacity": {"concurrency_hint": 2, "max_concurrent_steps": 2},
        "step": {"stop_grace": 0.5, "output_bytes": 2**25},
    }
    async with running_mesh(tmp_path, node=settings) as running, AsyncExitStack() as stack:
        channel = await stack.enter_async_context(open_channel(running.nodes[0].address))
        yield ExecutorNodeStub(channel)


async def take(link: HandLink, execution_id: str) -> str:
    """Give credit for an ending's texts, and read them."""
    ended = await link.update(execution_id, "ended")
    assert [each.field for each in ended.follows] == [OUTPUT]
    assert ended.event.ended.outcome.output == ""
    size = ended.follows[0].bytes
    await link.send(credits=[pb.ExecutionCredit(execution_id=execution_id, part_bytes=size)])
    await link.until(lambda: link.received(execution_id) >= size)
    return link.text(execution_id)


@pytest.mark.contract("F11")
async def test_a_large_prompt_and_output_come_in_parts_after_credit(node: ExecutorNodeAsyncStub) -> None:
    link = await hand_link(node)
    await link.send(starts=[start("a", follows=SIZE)])
    await link.until(lambda: link.credits["a"])
    assert link.credits["a"] == SIZE
    assert link.updates == [], "it has not begun"
    await link.send_text("a", TEXT)
    assert await take(link, "a") == TEXT
    assert link.told("a", "ended")[0].event.ended.outcome.success
    assert max(link.sizes) < MOST


@pytest.mark.contract("F11")
async def test_nothing_of_a_text_comes_before_credit_and_small_endings_need_none(node: ExecutorNodeAsyncStub) -> None:
    link = await hand_link(node)
    await link.send(starts=[start("fat", "shell", "head -c 500000 /dev/zero | tr '\\0' x")])
    await link.update("fat", "ended")
    for number in range(5):
        await link.send(starts=[start(f"small-{number}", prompt="done")])
        ended = await link.update(f"small-{number}", "ended")
        assert ended.event.ended.outcome.output == "done"
    assert not any(link.parts.values())
    assert await take(link, "fat") == "x" * 500_000


@pytest.mark.contract("F11")
async def test_texts_take_turns_and_small_endings_go_ahead_of_them(node: ExecutorNodeAsyncStub) -> None:
    link = await hand_link(node)
    command, size = "head -c 20000000 /dev/zero | tr '\\0' {}", 20_000_000
    await link.send(starts=[start("a", "shell", command.format("a")), start("b", "shell", command.format("b"))])
    for execution_id in "ab":
        await link.update(execution_id, "ended")
    for execution_id in "ab":
        await link.send(credits=[pb.ExecutionCredit(execution_id=execution_id, part_bytes=size)])
    await link.until(lambda: link.received("a") and link.received("b"))
    assert link.received("a") + link.received("b") < size, "neither waits for the other's end"
    await link.send(starts=[start("small", prompt="done")])
    await link.update("small", "ended")
    assert link.received("a") + link.received("b") < 2 * size, "it went ahead of what was left of them"
    await link.until(lambda: link.received("a") + link.received("b") == 2 * size)
    assert all(link.text(execution_id) == execution_id * size for execution_id in "ab")
    assert max(link.sizes) < MOST


@pytest.mark.contract("C10", "F11")
async def test_a_full_node_refuses_a_large_prompt_before_it_is_sent(node: ExecutorNodeAsyncStub) -> None:
    link = await hand_link(node)
    await link.send(starts=[start("a", "sleep", "600"), start("b", follows=SIZE), start("c", follows=SIZE)])
    rejected = (await link.update("c", "rejected")).rejected
    assert rejected.reason == pb.REJECTION_REASON_FULL
    assert dict(link.credits) == {"b": SIZE}, "b has its place, though its prompt is still to come"
    await link.send(starts=[start("d", "unheard-of", follows=SIZE)])
    assert (await link.update("d", "rejected")).rejected.reason == pb.REJECTION_REASON_AGENT_NOT_OFFERED
    await link.send_text("b", TEXT)
    assert await take(link, "b") == TEXT


@pytest.mark.contract("F1", "F24")
async def test_a_step_that_is_cancelled_before_its_prompt_is_complete_never_runs(node: ExecutorNodeAsyncStub) -> None:
    link = await hand_link(node)
    await link.send(starts=[start("a", follows=SIZE), start("b", follows=SIZE)])
    await link.until(lambda: link.credits["b"])
    await link.send_text("a", TEXT[:1000])
    await link.send(cancels=[pb.CancelExecution(execution_id="a", reason="enough")])
    outcome = (await link.update("a", "ended")).event.ended.outcome
    assert (outcome.failure.code, outcome.failure.message) == (step_pb2.FAILURE_CODE_CANCELLED, "enough")
    await link.send_text("a", TEXT[1000:])
    await link.send(starts=[start("c")])
    assert (await link.update("c", "ended")).event.ended.outcome.success, "its place is free again"


@pytest.mark.contract("F2", "F24")
async def test_a_prompt_whose_link_breaks_half_way_is_no_execution(node: ExecutorNodeAsyncStub) -> None:
    first = await hand_link(node, epoch=1)
    await first.send(starts=[start("a", follows=SIZE), start("b", follows=SIZE)])
    await first.until(lambda: first.credits["b"])
    await first.send_text("a", TEXT[:-1])
    first.break_off()
    second = await hand_link(node, epoch=2)
    assert second.held == []
    await second.send(starts=[start("a", follows=SIZE), start("b", follows=SIZE)])
    await second.until(lambda: second.credits["b"])
    assert dict(second.credits) == {"a": SIZE, "b": SIZE}, "both places were given back, and taken again"
    await second.send_text("a", TEXT)
    assert await take(second, "a") == TEXT


@pytest.mark.contract("F6", "F11")
async def test_an_ending_whose_link_breaks_half_way_is_told_anew(node: ExecutorNodeAsyncStub, tmp_path: Path) -> None:
    first = await hand_link(node, epoch=1)
    command = "echo once >> runs; head -c 1500000 /dev/zero | tr '\\0' x"
    await first.send(starts=[start("a", "shell", command)])
    await first.update("a", "ended")
    await first.send(credits=[pb.ExecutionCredit(execution_id="a", part_bytes=1_500_000)])
    await first.until(lambda: first.received("a"))
    first.break_off()
    second = await hand_link(node, epoch=2)
    assert second.held == ["a"]
    assert await take(second, "a") == "x" * 1_500_000
    await second.send(acknowledged=["a"], starts=[start("b")])
    await second.update("b", "ended")
    second.break_off()
    assert (await hand_link(node, epoch=3)).held == ["b"]
    assert (tmp_path / "runs").read_text() == "once\n"


async def test_an_ending_that_is_acknowledged_untaken_is_gone(node: ExecutorNodeAsyncStub) -> None:
    link = await hand_link(node)
    await link.send(starts=[start("a", "shell", "head -c 500000 /dev/zero | tr '\\0' x")])
    await link.update("a", "ended")
    await link.send(acknowledged=["a"], credits=[pb.ExecutionCredit(execution_id="a", part_bytes=500_000)])
    await link.send(starts=[start("b")])
    await link.update("b", "ended")
    assert not any(link.parts.values())


@pytest.mark.contract("C10", "F15")
async def test_a_node_that_keeps_too_much_for_a_coordinator_takes_nothing_from_it_until_it_has_that(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(running_mesh(tmp_path, node={"kept": {"characters": 100_000}}))
        channel = await stack.enter_async_context(open_channel(running.nodes[0].address))
        stub = ExecutorNodeStub(channel)
        link, other = await hand_link(stub), await hand_link(stub, coordinator="another")
        await link.send(starts=[start("fat", "shell", "head -c 200000 /dev/zero | tr '\\0' x")])
        await link.update("fat", "ended")
        await link.send(starts=[start("small")])
        assert (await link.update("small", "rejected")).rejected.reason == pb.REJECTION_REASON_FULL
        await other.send(starts=[start("others")])
        assert (await other.update("others", "ended")).event.ended.outcome.success
        assert await take(link, "fat") == "x" * 200_000
        await link.send(acknowledged=["fat"], starts=[start("small again")])
        assert (await link.update("small again", "ended")).event.ended.outcome.success


@pytest.mark.contract("C12", "C41")
async def test_what_is_said_wrongly_of_texts_fails_that_step_alone(node: ExecutorNodeAsyncStub) -> None:
    link = await hand_link(node)
    unknown = start("unknown")
    unknown.follows.add(field=99, bytes=5)  # a newer peer's
    await link.send(starts=[start("more", follows=10), start("sibling", "sleep", "0.5")])
    await link.until(lambda: link.credits["more"])
    await link.send_text("more", "x" * 11)
    await link.send(starts=[unknown])
    for execution_id, why in [("more", "more came of prompt"), ("unknown", "field 99 of 5 bytes")]:
        failure = (await link.update(execution_id, "ended")).event.ended.outcome.failure
        assert failure.code == step_pb2.FAILURE_CODE_INTERNAL
        assert why in failure.message
    await link.send(starts=[start("huge", follows=2**50)])
    assert "texts of" in (await link.update("huge", "ended")).event.ended.outcome.failure.message
    assert (await link.update("sibling", "ended")).event.ended.outcome.success
    await link.send(starts=[start("d", "sleep", "0"), start("e", "sleep", "0")])
    await link.update("e", "ended")
    assert not link.told("e", "rejected"), "no place was lost"


@pytest.mark.contract("C41")
async def test_pieces_and_credit_that_nobody_expects_are_passed_over(node: ExecutorNodeAsyncStub) -> None:
    link = await hand_link(node)
    await link.send_text("nobody", "x" * 10)
    await link.send(credits=[pb.ExecutionCredit(execution_id="nobody", part_bytes=5, progress_events=5)])
    await link.send(starts=[start("a", prompt="done")])
    assert (await link.update("a", "ended")).event.ended.outcome.output == "done"


CHATTERS = "for i in $(seq 60); do echo $i; sleep 0.03; done"
"""A command that tells progress some ten times a second for two seconds."""


async def test_progress_is_told_within_the_window_and_as_much_more_as_there_is_credit_for(
    node: ExecutorNodeAsyncStub,
) -> None:
    link = await hand_link(node, progress_window=3)
    await link.send(starts=[start("a", "shell", CHATTERS, progress=True), start("b", "shell", CHATTERS, progress=True)])
    await link.until(lambda: len(link.told("a", "progress")) == 3 and len(link.told("b", "progress")) == 3)
    await link.send(credits=[pb.ExecutionCredit(execution_id="b", progress_events=2)])
    for execution_id in "ab":
        output = (await link.update(execution_id, "ended")).event.ended.outcome.output
        assert output.split() == [str(number) for number in range(1, 61)]
    assert len(link.told("a", "progress")) == 3
    assert len(link.told("b", "progress")) == 5


async def test_a_coordinator_that_knows_no_window_is_told_all_progress(node: ExecutorNodeAsyncStub) -> None:
    link = await hand_link(node)
    await link.send(starts=[start("a", "shell", CHATTERS, progress=True)])
    await link.update("a", "ended")
    assert len(link.told("a", "progress")) > 5


@pytest.mark.contract("C5", "F11")
async def test_a_coordinator_that_takes_no_parts_is_sent_texts_within_messages(node: ExecutorNodeAsyncStub) -> None:
    link = await hand_link(node, takes_parts=False)
    await link.send(starts=[start("a", prompt=TEXT)])
    ended = await link.update("a", "ended")
    assert ended.event.ended.outcome.output == TEXT
    assert not ended.follows
