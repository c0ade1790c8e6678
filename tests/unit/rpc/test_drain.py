"""How a server stops."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from fanfold.errors import NotFound, Unavailable
from fanfold.rpc import server as server_module
from fanfold.v1 import executor_node_pb2 as pb
from unit.rpc.rpc_fakes import SERVICE, error_of, serving_node, until

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.contract("C43")
async def test_draining_is_told_at_once_while_running_calls_go_on() -> None:
    async with serving_node() as up:
        release = asyncio.Event()
        up.node.on_describe = release.wait  # type: ignore[assignment]
        up.node.described.node.name = "x" * 16_000_000  # takes a while to send, after the call has ended
        health = health_pb2_grpc.HealthStub(up.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == SERVING
        running = up.stub.DescribeNode(pb.DescribeNodeRequest())
        await up.node.entered.wait()

        draining = asyncio.create_task(up.server.drain(grace=600))
        async with asyncio.timeout(20):
            assert (await watch.read()).status == NOT_SERVING
            assert (await health.Check(health_pb2.HealthCheckRequest())).status == NOT_SERVING
            assert up.server.draining
            error = await error_of(up.describe())
            assert isinstance(error, Unavailable)
            assert (error.reason, error.retry_delay) == ("DRAINING", 1.0)
            assert not draining.done()
            release.set()
            assert await running == up.node.described
            await draining  # the health watcher does not hold it up
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await watch.read()
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.contract("C43")
async def test_who_asks_again_as_soon_as_the_last_call_is_answered_is_refused_and_not_broken_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "LINGER_SECONDS", 60.0)
    async with serving_node() as up:
        release = asyncio.Event()
        up.node.on_describe = release.wait  # type: ignore[assignment]
        running = asyncio.create_task(up.describe())
        await up.node.entered.wait()
        draining = asyncio.create_task(up.server.drain(grace=30))
        await until(lambda: up.server.draining)
        release.set()
        await running
        for _ in range(5):
            assert (await error_of(up.describe())).reason == "DRAINING"
        assert not draining.done()
        draining.cancel()


@pytest.mark.contract("C43")
async def test_calls_that_outlive_the_grace_are_cleaned_up_and_told_unavailable() -> None:
    async with serving_node() as up:
        cleaned = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.05)  # as if it ended processes
                cleaned.set()

        up.node.on_describe = up.node.on_watch = work
        call, stream = up.stub.DescribeNode(pb.DescribeNodeRequest()), up.stub.WatchNode(pb.WatchNodeRequest())
        await stream.read()
        await up.node.entered.wait()
        async with asyncio.timeout(5):
            await up.server.drain(grace=0.1)
        assert cleaned.is_set()
        for error in (await error_of(call), await error_of(stream.read())):
            assert isinstance(error, Unavailable)
            assert (error.reason, error.retry_delay) == ("DRAINING", 1.0)


async def test_a_stream_that_is_cancelled_while_it_writes_has_cleaned_up_when_the_server_has_stopped() -> None:
    async with serving_node() as up:
        written = 0

        async def count() -> None:
            nonlocal written
            written += 1

        up.node.on_watch = count
        up.node.watched.node.name = "x" * 1_000_000
        up.node.on_end = lambda: asyncio.sleep(0.1)
        stream = up.stub.WatchNode(pb.WatchNodeRequest())
        before = -1
        while before != written or not written:  # nobody reads, so at last flow control holds it up in a write
            before = written
            await asyncio.sleep(0.1)
        async with asyncio.timeout(5):
            await up.server.drain(0)
        assert up.node.ended.is_set()
        stream.cancel()


async def test_unattended_streams_are_not_waited_for() -> None:
    async with serving_node(unattended=frozenset({"WatchNode"})) as up:
        up.node.on_watch = lambda: asyncio.sleep(60)
        stream = up.stub.WatchNode(pb.WatchNodeRequest())
        await stream.read()
        async with asyncio.timeout(5):
            await up.server.drain(grace=30)
        assert up.node.ended.is_set()
        assert isinstance(await error_of(stream.read()), Unavailable)


@pytest.mark.parametrize("end", [None, NotFound("too late")])
async def test_a_call_that_will_not_end_does_not_hold_up_the_stop(
    end: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "CLEAN_UP_SECONDS", 0.2)
    async with serving_node() as up:
        release = asyncio.Event()

        async def stubborn() -> None:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            if end:
                raise end

        up.node.on_describe = stubborn
        call = asyncio.ensure_future(error_of(up.describe()))
        await up.node.entered.wait()
        async with asyncio.timeout(5):
            await up.server.drain(grace=0)
        await call
        release.set()
        await up.node.ended.wait()


async def test_draining_twice_and_leaving_the_block_is_harmless() -> None:
    async with serving_node() as up:
        await up.describe()
        await asyncio.gather(up.server.drain(0), up.server.drain(5))
        await up.server.begin_drain()


async def test_leaving_the_block_stops_at_once() -> None:
    async def hang() -> None:
        await asyncio.sleep(60)

    async with asyncio.timeout(5):
        async with serving_node() as up:
            up.node.on_describe = hang
            call = asyncio.ensure_future(up.describe())
            await up.node.entered.wait()
        assert up.node.ended.is_set()
        await asyncio.gather(call, return_exceptions=True)


async def test_a_drain_that_is_given_up_stops_at_once_when_the_block_is_left() -> None:
    async def hang() -> None:
        await asyncio.sleep(60)

    async with asyncio.timeout(5):
        async with serving_node() as up:
            up.node.on_describe = hang
            call = asyncio.ensure_future(up.describe())
            await up.node.entered.wait()
            draining = asyncio.create_task(up.server.drain(30))
            await until(lambda: up.server.draining)
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
        assert up.node.ended.is_set()
        await asyncio.gather(call, return_exceptions=True)


async def test_links_go_on_while_draining() -> None:
    async with serving_node() as up:
        link = up.stub.Link()
        for _ in range(3):
            await link.write(pb.LinkRequest())
            assert await link.read() == pb.LinkResponse()
            await up.server.begin_drain()
        await link.done_writing()
        assert await link.read() is grpc.aio.EOF
