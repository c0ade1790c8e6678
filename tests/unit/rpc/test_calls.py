"""What surrounds every call of a server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from executor_node.policy import policy_of
from fanfold.errors import InternalError, InvalidArgument, NotFound, Unimplemented
from fanfold.rpc.call import REQUEST_ID_KEY, current_call
from fanfold.rpc.channels import open_channel
from fanfold.rpc.server import GrpcServer, Service
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.v1.executor_node_pb2_grpc import add_ExecutorNodeServicer_to_server
from unit.rpc.rpc_fakes import (
    DESCRIBE,
    LINK,
    SERVICE,
    WATCH,
    FakeNode,
    error_of,
    raw_stream,
    raw_unary,
    serving_node,
    until,
)

UNDECODABLE = b"\xff\xff\xff"
SECRET = "sk-do-not-tell-7f3a"


@pytest.mark.contract("C41")
async def test_an_undecodable_single_request_is_an_invalid_argument_that_names_its_type() -> None:
    async with serving_node() as up:
        for method, name in (DESCRIBE, "DescribeNodeRequest"), (WATCH, "WatchNodeRequest"):
            error = await error_of(raw_unary(up.channel, method)(UNDECODABLE))
            assert isinstance(error, InvalidArgument)
            assert error.reason == "UNDECODABLE"
            assert f"fanfold.v1.{name}" in error.message
        assert not up.node.entered.is_set()


@pytest.mark.contract("C41")
async def test_an_undecodable_message_within_a_stream_is_an_invalid_argument() -> None:
    async with serving_node() as up:
        call = raw_stream(up.channel, LINK)()
        for _ in range(3):
            await call.write(b"")
            assert await call.read() == b""
        await call.write(UNDECODABLE)
        error = await error_of(call.read())
        assert isinstance(error, InvalidArgument)
        assert error.reason == "UNDECODABLE"
        assert "fanfold.v1.LinkRequest" in error.message
        assert up.node.ended.is_set()


@pytest.mark.contract("C41", "C42")
@pytest.mark.parametrize("method", [DESCRIBE, WATCH])
async def test_a_call_that_ends_without_its_request_is_answered(method: str) -> None:
    async with serving_node() as up:
        call = raw_stream(up.channel, method)()
        await call.done_writing()
        error = await error_of(call.read())
        assert isinstance(error, InvalidArgument)
        assert error.reason == "REQUEST_MISSING"


@pytest.mark.contract("C41")
@pytest.mark.parametrize("method", ["/fanfold.v1.ExecutorNode/Nope", "/no.such.Service/Nope", "/nope"])
async def test_unknown_methods_are_unimplemented_with_details(method: str) -> None:
    async with serving_node() as up:
        error = await error_of(raw_unary(up.channel, method)(b""))
        assert isinstance(error, Unimplemented)
        assert error.reason == "UNIMPLEMENTED"
        assert method in error.message
        # A stream that never sends anything is answered as well.
        error = await error_of(raw_stream(up.channel, method)().read())
        assert isinstance(error, Unimplemented)


@pytest.mark.contract("C41")
async def test_methods_that_a_servicer_lacks_are_unimplemented_with_details() -> None:
    async with serving_node() as up:
        call = up.stub.ExecuteStep(pb.ExecutorNodeExecuteStepRequest())
        error = await error_of(call.read())
        assert isinstance(error, Unimplemented)
        assert error.message == f"/{SERVICE}/ExecuteStep is not implemented here"


@pytest.mark.contract("C41")
@pytest.mark.parametrize("kind", [RuntimeError, NotImplementedError, grpc.aio.InternalError, grpc.aio.UsageError])
@pytest.mark.parametrize("stage", ["unary", "stream"])
async def test_nothing_of_an_unknown_exception_reaches_the_client(stage: str, kind: type[Exception]) -> None:
    async def fail() -> None:
        raise kind(SECRET)

    async with serving_node() as up:
        up.node.on_describe = up.node.on_watch = fail
        with capture_logs() as lines:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await (up.describe() if stage == "unary" else _read_all(up.stub.WatchNode(pb.WatchNodeRequest())))
            await until(lambda: [line for line in lines if line["log_level"] == "error"])
        told = raised.value
        assert told.code() is grpc.StatusCode.INTERNAL
        request_id = dict(told.trailing_metadata())[REQUEST_ID_KEY]
        assert told.details() == f"internal error; the log has request id {request_id!s}"
        assert SECRET not in repr((told, told.trailing_metadata(), told.initial_metadata()))
        await until(lambda: up.metric("fanfold_rpc_in_flight", **_labels("DescribeNode")) in (0, None))
        assert SECRET not in repr(list(up.registry.collect()))
        [logged] = [line for line in lines if line["log_level"] == "error"]
        assert SECRET in str(logged["exc_info"])


async def _read_all(call: Any) -> None:
    async for _ in call:
        pass


async def test_a_response_that_cannot_be_encoded_is_an_internal_error() -> None:
    class Wrong(FakeNode):
        async def DescribeNode(self, request: Any, context: Any) -> Any:  # noqa: N802
            return SECRET

    async with _serving(Wrong()) as channel:  # type: ignore[abstract]
        error = await error_of(raw_unary(channel, DESCRIBE)(b""))
    assert isinstance(error, InternalError)
    assert SECRET not in error.message


@pytest.mark.contract("C41")
async def test_a_domain_error_out_of_a_task_group_is_answered_as_itself() -> None:
    async def fail() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(_raise(NotFound("no such run")))

    async def fail_otherwise() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(_raise(NotFound("no such run")))
            group.create_task(_raise(RuntimeError(SECRET)))

    async with serving_node() as up:
        up.node.on_describe = fail
        error = await error_of(up.describe())
        assert (type(error), error.message) == (NotFound, "no such run")
        up.node.on_describe = fail_otherwise
        error = await error_of(up.describe())
        assert type(error) is InternalError
        assert "no such run" not in error.message


async def _raise(error: Exception) -> None:
    raise error


@pytest.mark.contract("C41")
@pytest.mark.parametrize("kind", ["unary", "stream"])
async def test_a_cancelled_call_runs_the_finally_blocks_and_is_no_error(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving_node() as up:
        cleaned: list[str] = []

        async def work() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0)
                cleaned.append(kind)

        up.node.on_describe = up.node.on_watch = work
        call: Any = (
            up.stub.DescribeNode(pb.DescribeNodeRequest())
            if kind == "unary"
            else up.stub.WatchNode(pb.WatchNodeRequest())
        )
        with caplog.at_level(logging.WARNING), capture_logs() as lines:
            async with asyncio.timeout(5):
                await asyncio.gather(up.node.entered.wait(), call.read() if kind == "stream" else asyncio.sleep(0))
                call.cancel()
                await up.node.ended.wait()
            assert cleaned == [kind]
            method = "DescribeNode" if kind == "unary" else "WatchNode"
            await until(lambda: up.metric("fanfold_rpc_handled_total", **_labels(method), code="CANCELLED") == 1)
        assert [line for line in lines if line["log_level"] != "debug"] == []
        assert caplog.records == []


async def test_a_cancelled_call_that_ends_by_an_error_is_nothing_to_log(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise NotFound("too late to tell") from None

    async with serving_node() as up:
        up.node.on_describe = work
        call = up.stub.DescribeNode(pb.DescribeNodeRequest())
        await up.node.entered.wait()
        with caplog.at_level(logging.WARNING), capture_logs() as lines:
            call.cancel()
            await until(lambda: up.metric("fanfold_rpc_in_flight", **_labels("DescribeNode")) == 0)
            await up.server.drain(1)
        assert [line for line in lines if line["log_level"] not in {"debug", "info"}] == []
        assert caplog.records == []


async def test_a_call_beyond_its_deadline_is_cancelled_and_counted_as_such() -> None:
    async with serving_node() as up:
        up.node.on_describe = lambda: asyncio.sleep(60)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await up.stub.DescribeNode(pb.DescribeNodeRequest(), timeout=0.5)
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        async with asyncio.timeout(5):
            await up.node.ended.wait()
        labels = _labels("DescribeNode")
        await until(lambda: up.metric("fanfold_rpc_handled_total", **labels, code="DEADLINE_EXCEEDED") == 1)


async def test_a_given_request_id_is_current_in_the_call_and_told_back() -> None:
    async with serving_node() as up:
        seen: list[str] = []
        release = asyncio.Event()

        async def look() -> None:
            seen.append(current_call().request_id)
            await release.wait()
            seen.append(current_call().request_id)

        up.node.on_describe = look
        calls = [
            up.stub.DescribeNode(pb.DescribeNodeRequest(), metadata=((REQUEST_ID_KEY, f"id-{number}"),))
            for number in range(8)
        ]
        await until(lambda: len(seen) == 8)
        release.set()
        for number, call in enumerate(calls):
            await call
            assert dict(await call.trailing_metadata())[REQUEST_ID_KEY] == f"id-{number}"
        assert sorted(seen[:8]) == sorted(seen[8:]) == [f"id-{number}" for number in range(8)]


@pytest.mark.parametrize("given", ["", "has space", "x" * 129, "semi;colon", "quote\"'", None])
async def test_a_request_id_that_is_not_well_formed_is_replaced(given: str | None) -> None:
    async with serving_node() as up:
        seen: list[str] = []

        async def look() -> None:
            seen.append(current_call().request_id)
            raise NotFound

        up.node.on_describe = look
        metadata = () if given is None else ((REQUEST_ID_KEY, given),)
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await up.stub.DescribeNode(pb.DescribeNodeRequest(), metadata=metadata)
            assert dict(raised.value.trailing_metadata())[REQUEST_ID_KEY] == seen[-1]
        assert len({given, *seen}) == 3


async def test_a_call_inherits_nothing_from_whoever_started_the_server() -> None:
    identity = ContextVar("identity", default="nobody")
    identity.set("whoever started it")
    async with serving_node() as up:
        seen: list[str] = []

        async def look() -> None:
            seen.append(identity.get())
            identity.set("an earlier call")

        up.node.on_describe = look
        await up.describe()
        await up.describe()
    assert seen == ["nobody", "nobody"]
    with pytest.raises(LookupError):
        current_call()


@asynccontextmanager
async def _serving(node: FakeNode) -> AsyncIterator[grpc.aio.Channel]:
    service = Service(SERVICE, node, add_ExecutorNodeServicer_to_server, policy_of(direct_callers=True))
    async with GrpcServer([service]) as server, open_channel(str(server.address)) as channel:
        yield channel


def _labels(method: str) -> dict[str, str]:
    return {"grpc_service": SERVICE, "grpc_method": method}
