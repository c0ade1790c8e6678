"""What surrounds every call of a server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc  # type: ignore[import-untyped]
from structlog.testing import capture_logs

from fanfold.errors import FailedPrecondition, InternalError, InvalidArgument, NotFound, Unimplemented
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
    Context,
    FakeNode,
    Up,
    error_of,
    raw_stream,
    raw_unary,
    send_path,
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
@pytest.mark.parametrize("stage", ["unary", "stream"])
async def test_nothing_of_an_unknown_exception_reaches_the_client(stage: str) -> None:
    async def fail() -> None:
        raise RuntimeError(SECRET)

    async with serving_node() as up:
        up.node.on_describe = up.node.on_watch = fail
        with capture_logs() as lines, pytest.raises(grpc.aio.AioRpcError) as raised:
            await (up.describe() if stage == "unary" else _read_all(up.stub.WatchNode(pb.WatchNodeRequest())))
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


async def test_a_generator_is_closed_when_the_call_is_cancelled_while_it_writes() -> None:
    async with serving_node() as up:
        # Nobody reads, so flow control holds the server up in a write sooner or later.
        call = up.stub.WatchNode(pb.WatchNodeRequest())
        async with asyncio.timeout(5):
            await up.node.entered.wait()
            await asyncio.sleep(0.1)
            call.cancel()
            await up.node.ended.wait()


async def test_a_call_beyond_its_deadline_is_cancelled_and_counted_as_such() -> None:
    async with serving_node() as up:
        up.node.on_describe = lambda: asyncio.sleep(60)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await up.stub.DescribeNode(pb.DescribeNodeRequest(), timeout=0.1)
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
    class Nested(FakeNode):
        async def DescribeNode(self, request: Any, context: Context) -> pb.DescribeNodeResponse:  # noqa: N802
            async with serving_node() as inner:
                seen: list[str] = []

                async def look() -> None:
                    seen.append(current_call().method.path)

                inner.node.on_describe = look
                await inner.describe()
                assert current_call().request_id == "outer"
            assert seen == [DESCRIBE]
            return pb.DescribeNodeResponse()

    async with _serving(Nested()) as channel:  # type: ignore[abstract]
        assert await raw_unary(channel, DESCRIBE)(b"", metadata=((REQUEST_ID_KEY, "outer"),)) == b""


@pytest.mark.contract("C44")
async def test_health_is_told_for_each_service_and_for_all() -> None:
    async with serving_node() as up:
        health = health_pb2_grpc.HealthStub(up.channel)
        for service in ("", SERVICE, "grpc.health.v1.Health"):
            response = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert response.status == health_pb2.HealthCheckResponse.SERVING
        error = await error_of(health.Check(health_pb2.HealthCheckRequest(service="nope")))
        assert (type(error), error.reason) == (NotFound, "SERVICE_UNKNOWN")


@pytest.mark.contract("C44")
async def test_reflection_lists_the_services_and_describes_them() -> None:
    async with serving_node() as up:

        async def questions() -> AsyncIterator[Any]:
            yield reflection_pb2.ServerReflectionRequest(list_services="")
            yield reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE)

        stub = reflection_pb2_grpc.ServerReflectionStub(up.channel)
        listed, described = [answer async for answer in stub.ServerReflectionInfo(questions())]
    names = {service.name for service in listed.list_services_response.service}
    assert names == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert b"ExecutorNode" in described.file_descriptor_response.file_descriptor_proto[0]


@pytest.mark.contract("C40")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.7", "example.org", "127.0.0.1.example.org"])
def test_addresses_that_others_reach_are_refused(host: str) -> None:
    with pytest.raises(FailedPrecondition, match="cannot be authenticated yet") as raised:
        GrpcServer([], host=host)
    assert raised.value.reason == "NOT_LOOPBACK"
    assert host in raised.value.message


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
async def test_a_free_port_of_a_loopback_address_is_taken(host: str) -> None:
    async with GrpcServer([], host=host) as server:
        assert server.port == server.address.port > 0
        async with grpc.aio.insecure_channel(str(server.address)) as channel:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())


async def test_a_port_that_is_taken_is_refused_by_name() -> None:
    async with GrpcServer([]) as first:
        with pytest.raises(FailedPrecondition, match=f"cannot listen on 127.0.0.1:{first.port}"):
            async with GrpcServer([], port=first.port):
                pass


@pytest.mark.contract("C41")
async def test_a_request_path_that_is_no_text_does_not_end_the_service() -> None:
    async with serving_node() as up:
        link = up.stub.Link()
        await link.write(pb.LinkRequest())
        assert await link.read() == pb.LinkResponse()
        for _ in range(2):
            await send_path(up.server.port, b"/\xff\xfe/x")
            async with asyncio.timeout(10):
                while not await _is_served(up):
                    await asyncio.sleep(0.05)
        await link.write(pb.LinkRequest())
        assert await link.read() == pb.LinkResponse()  # what ran was not touched
        await send_path(up.server.port, b"/a b/\x01")
        await up.describe()


async def test_metrics_count_time_and_label_calls() -> None:
    async with serving_node() as up:
        await up.describe()
        await up.describe()
        await error_of(raw_unary(up.channel, DESCRIBE)(UNDECODABLE))
        for number in range(5):
            await error_of(raw_unary(up.channel, f"/made.up/Method{number}")(b""))
        link = up.stub.Link()
        await link.write(pb.LinkRequest())
        await link.read()

        describe, unknown = _labels("DescribeNode"), {"grpc_service": "unknown", "grpc_method": "unknown"}
        assert up.metric("fanfold_rpc_handled_total", **describe, code="OK") == 2
        assert up.metric("fanfold_rpc_handled_total", **describe, code="INVALID_ARGUMENT") == 1
        assert up.metric("fanfold_rpc_handled_total", **unknown, code="UNIMPLEMENTED") == 5
        assert up.metric("fanfold_rpc_seconds_count", **describe) == 3
        assert 0 < (up.metric("fanfold_rpc_seconds_sum", **describe) or 0) < 5
        assert up.metric("fanfold_rpc_in_flight", **describe) == 0
        assert up.metric("fanfold_rpc_in_flight", **_labels("Link")) == 1
        assert "made.up" not in repr(list(up.registry.collect()))
        await link.done_writing()
        assert await link.read() is grpc.aio.EOF
        await until(lambda: up.metric("fanfold_rpc_in_flight", **_labels("Link")) == 0)


async def _is_served(up: Up) -> bool:
    try:
        await up.describe()
    except grpc.aio.AioRpcError:
        return False
    return True


@asynccontextmanager
async def _serving(node: FakeNode) -> AsyncIterator[grpc.aio.Channel]:
    service = Service(SERVICE, node, add_ExecutorNodeServicer_to_server)
    async with GrpcServer([service]) as server, open_channel(str(server.address)) as channel:
        yield channel


def _labels(method: str) -> dict[str, str]:
    return {"grpc_service": SERVICE, "grpc_method": method}
