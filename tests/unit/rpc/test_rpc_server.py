"""What a server offers beside its services, and where."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc  # type: ignore[import-untyped]

from fanfold.errors import FailedPrecondition, NotFound
from fanfold.rpc.server import GrpcServer
from fanfold.v1 import executor_node_pb2 as pb
from unit.rpc.rpc_fakes import (
    DESCRIBE,
    SERVICE,
    Up,
    error_of,
    raw_unary,
    send_path,
    serving_node,
    until,
)

UNDECODABLE = b"\xff\xff\xff"
SECRET = "sk-do-not-tell-7f3a"


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
    with pytest.raises(FailedPrecondition, match="no way to authenticate callers") as raised:
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
        assert up.metric("fanfold_rpc_duration_seconds_count", **describe) == 3
        assert 0 < (up.metric("fanfold_rpc_duration_seconds_sum", **describe) or 0) < 5
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


def _labels(method: str) -> dict[str, str]:
    return {"grpc_service": SERVICE, "grpc_method": method}
