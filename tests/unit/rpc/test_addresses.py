"""Addresses and the channels to them."""

from __future__ import annotations

import os
from unittest import mock

import grpc
import pytest

from fanfold.errors import FailedPrecondition, InvalidArgument
from fanfold.rpc.addresses import Address, bindable, parse_address
from fanfold.rpc.channels import open_channel
from fanfold.rpc.server import GrpcServer
from fanfold.v1 import executor_node_pb2 as pb
from unit.rpc.rpc_fakes import serving_node


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:7400", "127.0.0.1", 7400),
        ("localhost:1", "localhost", 1),
        ("node-3.mesh_a.svc.cluster.local:65535", "node-3.mesh_a.svc.cluster.local", 65535),
        ("[::1]:7400", "::1", 7400),
        ("[2001:db8::7]:80", "2001:db8::7", 80),
    ],
)
def test_an_address_is_read_and_written_the_same(text: str, host: str, port: int) -> None:
    assert parse_address(text) == Address(host, port)
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be host:port"),
        ("localhost", "must be host:port"),
        (":7400", "must be host:port"),
        ("::1:7400", "must be host:port"),
        ("[::1]", "must be host:port"),
        ("[nonsense]:1", "must be host:port"),
        ("[12345::1]:1", "must be host:port"),
        ("host:port", "must be host:port"),
        ("host:80:90", "must be host:port"),
        ("http://host:80", "must be host:port"),
        ("user@host:80", "must be host:port"),
        ("host:80\n", "must be host:port"),
        ("-host:80", "must be host:port"),
        ("host:0", "a port from 1 to 65535"),
        ("host:65536", "a port from 1 to 65535"),
        ("unix:/run/fanfold.sock", "unix sockets are not supported"),
        ("/run/fanfold.sock", "unix sockets are not supported"),
    ],
)
def test_what_is_no_address_is_refused_by_field(text: str, said: str) -> None:
    for read in (parse_address, open_channel):
        with pytest.raises(InvalidArgument, match=said) as raised:
            read(text, field="nodes[2].address")
        assert [violation.field for violation in raised.value.violations] == ["nodes[2].address"]


def test_a_listener_may_ask_for_any_port() -> None:
    assert parse_address("127.0.0.1:0", any_port=True) == Address("127.0.0.1", 0)


@pytest.mark.contract("C40")
def test_only_loopback_may_be_listened_on() -> None:
    assert [bindable(host, anywhere=False) for host in ("localhost", "127.0.0.1", "127.8.9.1", "::1")] == [
        "127.0.0.1",
        "127.0.0.1",
        "127.8.9.1",
        "::1",
    ]
    for host in ("", "0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "localhost.example.org"):
        with pytest.raises(FailedPrecondition, match="only loopback"):
            bindable(host, anywhere=False)


async def test_proxies_of_the_environment_are_not_used() -> None:
    nowhere = "http://127.0.0.1:1"
    with mock.patch.dict(os.environ, {"http_proxy": nowhere, "grpc_proxy": nowhere, "https_proxy": nowhere}):
        async with serving_node() as up:
            assert await up.describe() == pb.DescribeNodeResponse()


async def test_a_channel_finds_a_server_that_came_back() -> None:
    async with serving_node() as up:
        port = up.server.port
        await up.describe()
        await up.server.drain(0)
        with pytest.raises(grpc.aio.AioRpcError):
            await up.describe()
        async with GrpcServer([], port=port):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await up.stub.DescribeNode(pb.DescribeNodeRequest(), wait_for_ready=True, timeout=10)
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
