"""Executions that change their holder, as the node sees it: a coordinator goes on with another one's run (C19, F5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from google.protobuf.duration_pb2 import Duration

from fanfold.rpc.channels import open_channel
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.v1 import step_pb2
from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeStub
from support.links import HandLink, hand_link, start
from support.mesh import running_mesh, until

if TYPE_CHECKING:
    from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeAsyncStub

pytestmark = [pytest.mark.process, pytest.mark.contract("C19")]

STALE = pb.REJECTION_REASON_STALE_EPOCH

COUNTED = "echo $$ >> lives; until [ -e gate ]; do sleep 0.02; done; echo done"
"""A command that notes that it began, and ends when the workspace has a file `gate`."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[ExecutorNodeAsyncStub]:
    async with running_mesh(tmp_path) as running, AsyncExitStack() as stack:
        channel = await stack.enter_async_context(open_channel(running.nodes[0].address))
        yield ExecutorNodeStub(channel)


async def begun(link: HandLink, workspace: Path, execution_id: str = "e") -> Path:
    """The process of an execution that the link starts."""
    before = len(lives(workspace))
    await link.send(starts=[start(execution_id, "shell", COUNTED)])
    await until(lambda: len(lives(workspace)) > before, "it runs")
    return Path("/proc", lives(workspace)[-1])


def lives(workspace: Path) -> list[str]:
    """The process ids of the executions that have begun."""
    file = workspace / "lives"
    written = file.read_text() if file.exists() else ""
    return written[: written.rfind("\n") + 1].split()


def held(adopted: pb.RunAdopted) -> tuple[list[str], list[str], bool]:
    """What was held, what of that has ended, and whether the asker came too late."""
    return sorted(adopted.held_executions), sorted(adopted.ended_executions), adopted.stale


def first_update(link: HandLink) -> str | None:
    return link.updates[0].event.WhichOneof("event")


async def failure_of(link: HandLink, execution_id: str = "e") -> step_pb2.StepFailure:
    return (await link.update(execution_id, "ended")).event.ended.outcome.failure


@pytest.mark.contract("F2")
async def test_what_runs_goes_on_for_its_new_holder_and_ends_once(node: ExecutorNodeAsyncStub, tmp_path: Path) -> None:
    former, heir = await hand_link(node, coordinator="former"), await hand_link(node, coordinator="heir")
    await begun(former, tmp_path)
    assert held(await heir.adopt("run-1", 2)) == (["e"], [], False)
    await heir.until(lambda: heir.updates)
    assert first_update(heir) == "started"
    (tmp_path / "gate").touch()
    outcome = (await heir.update("e", "ended")).event.ended.outcome
    assert (outcome.success, outcome.output) == (True, "done\n")
    assert len(lives(tmp_path)) == 1


@pytest.mark.contract("C13")
async def test_a_node_says_whether_it_has_begun_anything_of_the_run(node: ExecutorNodeAsyncStub) -> None:
    former, heir = await hand_link(node, coordinator="former"), await hand_link(node, coordinator="heir")
    assert (await heir.adopt("run-1", 2)).unbegun
    assert (await heir.adopt("run-1", 2)).unbegun, "an answer may be lost with its link"
    await former.send(starts=[start("late")])
    assert (await former.update("late", "rejected")).rejected.reason == STALE
    assert (await heir.adopt("run-1", 3)).unbegun, "what comes too late is not begun"
    await heir.send(starts=[start("e", epoch=3)])
    await heir.update("e", "ended")
    assert not (await former.adopt("run-1", 4)).unbegun


@pytest.mark.contract("C19", "F2")
async def test_what_runs_is_held_though_its_run_is_forgotten(
    node: ExecutorNodeAsyncStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor_node.links.MAX_RUNS_REMEMBERED", 1)
    former, heir = await hand_link(node, coordinator="former"), await hand_link(node, coordinator="heir")
    await begun(former, tmp_path)
    await former.adopt("run-2", 1)
    adopted = await heir.adopt("run-1", 2)
    assert (held(adopted), adopted.unbegun) == ((["e"], [], False), False)
    (tmp_path / "gate").touch()
    await heir.update("e", "ended")


@pytest.mark.contract("F5")
async def test_the_former_holder_is_told_that_it_has_lost_it_and_nothing_more(
    node: ExecutorNodeAsyncStub, tmp_path: Path
) -> None:
    former, heir = await hand_link(node, coordinator="former"), await hand_link(node, coordinator="heir")
    process = await begun(former, tmp_path)
    await former.update("e", "started")
    await heir.adopt("run-1", 2)
    assert (await former.update("e", "rejected")).rejected.reason == STALE
    former.updates.clear()
    await former.send(
        cancels=[pb.CancelExecution(execution_id="e")], starts=[start("e", "shell", COUNTED), start("later")]
    )
    assert (await former.update("later", "rejected")).rejected.reason == STALE
    assert (await former.update("e", "rejected")).rejected.reason == STALE
    assert process.exists(), "it cannot be stopped by who does not hold it"
    (tmp_path / "gate").touch()
    await heir.update("e", "ended")
    await former.send(acknowledged=["e"], starts=[start("marker")])
    await former.update("marker", "rejected")
    assert held(await heir.adopt("run-1", 2)) == (["e"], ["e"], False), "nor can its ending be acknowledged"
    assert former.told("e", "ended") == []


async def test_an_ending_that_nobody_acknowledged_is_told_to_the_new_holder(
    node: ExecutorNodeAsyncStub, tmp_path: Path
) -> None:
    former = await hand_link(node, coordinator="former")
    (tmp_path / "gate").touch()
    await begun(former, tmp_path)
    await former.send(starts=[start("settled")])
    await former.update("e", "ended")
    await former.update("settled", "ended")
    await former.send(acknowledged=["settled"], starts=[start("marker", "unheard-of")])
    await former.update("marker", "rejected")
    former.break_off()
    heir = await hand_link(node, coordinator="heir")
    assert held(await heir.adopt("run-1", 2)) == (["e"], ["e"], False), "what was rejected was never there"
    await heir.until(lambda: heir.updates)
    assert first_update(heir) == "ended"
    assert heir.updates[0].event.ended.outcome.output == "done\n"
    await heir.send(acknowledged=["e"])
    assert held(await heir.adopt("run-1", 2)) == ([], [], False)
    assert len(lives(tmp_path)) == 1


async def test_a_large_ending_moves_too(node: ExecutorNodeAsyncStub) -> None:
    former, heir = await hand_link(node, coordinator="former"), await hand_link(node, coordinator="heir")
    size = 300_000
    await former.send(starts=[start("e", "shell", f"head -c {size} /dev/zero | tr '\\0' x")])
    await former.update("e", "ended")
    await former.send(credits=[pb.ExecutionCredit(execution_id="e", part_bytes=100_000)])
    await former.until(lambda: former.received("e"))
    await heir.adopt("run-1", 2)
    await heir.update("e", "ended")
    await heir.send(credits=[pb.ExecutionCredit(execution_id="e", part_bytes=size)])
    await heir.until(lambda: heir.received("e") == size)
    assert heir.text("e") == "x" * size


@pytest.mark.contract("F5")
async def test_an_older_epoch_adopts_nothing(node: ExecutorNodeAsyncStub, tmp_path: Path) -> None:
    former, heir = await hand_link(node, coordinator="former"), await hand_link(node, coordinator="heir")
    await former.send(starts=[start("e", "shell", COUNTED, epoch=7)])
    await former.update("e", "started")
    assert held(await heir.adopt("run-1", 6)) == ([], [], True)
    assert held(await heir.adopt("run-2", 1)) == ([], [], False), "another run has epochs of its own"
    (tmp_path / "gate").touch()
    await former.update("e", "ended")
    assert heir.updates == []


async def test_adopting_again_gives_the_same_answer(node: ExecutorNodeAsyncStub, tmp_path: Path) -> None:
    former, heir = await hand_link(node, coordinator="former"), await hand_link(node, coordinator="heir")
    await begun(former, tmp_path)
    await former.send(starts=[start("f")])
    await former.update("f", "ended")
    for _ in range(2):
        assert held(await heir.adopt("run-1", 2)) == (["e", "f"], ["f"], False)
        await heir.until(lambda: heir.told("e", "started") and heir.told("f", "ended"))
    heir.break_off()
    again = await hand_link(node, coordinator="heir", epoch=2)
    assert sorted(again.held) == ["e", "f"]
    assert held(await again.adopt("run-1", 2)) == (["e", "f"], ["f"], False)
    assert len(lives(tmp_path)) == 1


async def keep_alive(link: HandLink) -> None:
    while True:
        await link.send()
        await asyncio.sleep(0.2)


@pytest.mark.contract("F1", "F2")
async def test_the_lease_is_the_new_holders(node: ExecutorNodeAsyncStub, tmp_path: Path) -> None:
    former = await hand_link(node, coordinator="former", lease=3)
    heir = await hand_link(node, coordinator="heir", lease=2)
    process = await begun(former, tmp_path)
    await heir.adopt("run-1", 2)
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(keep_alive(heir))
        await asyncio.sleep(4.5)  # the former holder's lease has ended long ago
        assert process.exists()
        keeping.cancel()
    await until(lambda: not process.exists(), "the process is gone when the heir's lease ends")


async def test_what_was_killed_with_its_holders_lease_is_told_as_lost_to_the_new_one(
    node: ExecutorNodeAsyncStub, tmp_path: Path
) -> None:
    former = await hand_link(node, coordinator="former", lease=2)
    process = await begun(former, tmp_path)
    await until(lambda: not process.exists(), "the lease ends")
    heir = await hand_link(node, coordinator="heir")
    assert (await heir.adopt("run-1", 2)).held_executions == ["e"]
    failure = await failure_of(heir)
    assert (failure.code, failure.retryable) == (step_pb2.FAILURE_CODE_NODE_LOST, True)


async def test_a_cancel_with_a_delay_stops_what_nobody_adopts_meanwhile(
    node: ExecutorNodeAsyncStub, tmp_path: Path
) -> None:
    former, heir = await hand_link(node, coordinator="former"), await hand_link(node, coordinator="heir")
    loop = asyncio.get_running_loop()
    process = await begun(former, tmp_path)
    began = loop.time()
    await former.send(cancels=[pb.CancelExecution(execution_id="e", reason="left", delay=Duration(seconds=1))])
    assert (await failure_of(former)).code == step_pb2.FAILURE_CODE_CANCELLED
    assert loop.time() - began >= 1
    assert not process.exists()

    process = await begun(former, tmp_path, "f")
    await former.send(cancels=[pb.CancelExecution(execution_id="f", reason="left", delay=Duration(seconds=1))])
    await heir.adopt("run-1", 2)
    await asyncio.sleep(2)
    assert process.exists()
    (tmp_path / "gate").touch()
    assert (await heir.update("f", "ended")).event.ended.outcome.success


async def test_a_later_cancel_takes_the_place_of_one_with_a_delay(node: ExecutorNodeAsyncStub, tmp_path: Path) -> None:
    link = await hand_link(node)
    process = await begun(link, tmp_path)
    for delay in (600, 0):
        await link.send(cancels=[pb.CancelExecution(execution_id="e", delay=Duration(seconds=delay))])
    await until(lambda: not process.exists(), "it is stopped at once")


@pytest.mark.contract("C10")
async def test_a_node_says_how_many_coordinators_have_work_there(node: ExecutorNodeAsyncStub, tmp_path: Path) -> None:
    idle = await hand_link(node, coordinator="idle")
    await idle.until(lambda: idle.status.coordinators)
    assert idle.status.coordinators == 1, "the tests' own coordinator has no work here"
    first, second = await hand_link(node, coordinator="first"), await hand_link(node, coordinator="second")
    await begun(first, tmp_path)
    await begun(second, tmp_path, "f")
    await first.until(lambda: first.status.coordinators == 2)
    await idle.until(lambda: idle.status.coordinators == 3)
    (tmp_path / "gate").touch()
    await first.until(lambda: first.status.coordinators == 1)
