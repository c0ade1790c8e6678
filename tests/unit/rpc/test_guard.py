"""Who is let in at a server's door, over real connections, with callers who are known by a word in their metadata."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from structlog.testing import CapturingLogger, capture_logs

from fanfold.errors import InvalidArgument, PermissionDenied, Unauthenticated, Unimplemented
from fanfold.model.principal import ANONYMOUS, Principal, Role
from fanfold.rpc.auth import guard
from fanfold.rpc.auth.acting import ON_BEHALF_OF, ROLES, on_behalf_of
from fanfold.rpc.auth.guard import Bearer
from fanfold.rpc.auth.policy import Policy
from fanfold.rpc.call import Call, call_fields, current_call, current_principal
from fanfold.rpc.channels import open_channel
from fanfold.rpc.server import DEVELOPMENT_MODE, GrpcServer, Service
from fanfold.v1.executor_node_pb2_grpc import add_ExecutorNodeServicer_to_server
from unit.rpc.rpc_fakes import DESCRIBE, LINK, SERVICE, FakeNode, error_of, raw_stream, raw_unary

KNOWN = {
    "alice": Principal("alice", frozenset({Role.CALLER})),
    "watcher": Principal("watcher", frozenset({Role.OBSERVER})),
    "c1": Principal("c1", frozenset({Role.COORDINATOR})),
    "p1": Principal("p1", frozenset({Role.PRODUCER})),
    "boss": Principal("boss", frozenset({Role.OPERATOR, Role.CALLER})),
}
POLICY: Policy = {"DescribeNode": frozenset({Role.CALLER, Role.OPERATOR})}


class ByName:
    """Believes whoever says a name that it knows."""

    async def authenticate(self, call: Call) -> Bearer:
        try:
            return Bearer(KNOWN[str(call.metadata["name"])], math.inf)
        except KeyError:
            raise Unauthenticated from None

    def has_revoked(self, call: Call) -> bool:
        return KNOWN.get(str(call.metadata["name"])) != call.actor


class Door:
    """A server whose callers are known by name, and what it has let in."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.let_in: list[tuple[Principal, Principal]] = []
        self.logged: list[dict[str, str]] = []

    async def describe(self, *metadata: tuple[str, str]) -> None:
        await raw_unary(self.channel, DESCRIBE)(b"", metadata=metadata)


@asynccontextmanager
async def door(policy: Policy = POLICY) -> AsyncIterator[Door]:
    async def look() -> None:
        at.let_in.append((current_principal(), current_call().actor))
        at.logged.append(call_fields())

    node = FakeNode(on_describe=look)  # type: ignore[abstract]
    service = Service(SERVICE, node, add_ExecutorNodeServicer_to_server, policy)
    async with GrpcServer([service], authenticator=ByName()) as server, open_channel(str(server.address)) as channel:
        at = Door(channel)
        yield at


@pytest.mark.contract("C40", "C41")
async def test_a_call_of_nobody_known_is_refused_before_anything_else() -> None:
    async with door() as at:
        for metadata in [(), (("name", "mallory"),)]:
            refused = await error_of(at.describe(*metadata))
            assert isinstance(refused, Unauthenticated)
            assert refused.reason == "UNAUTHENTICATED"
            assert "mallory" not in refused.message
        undecodable = raw_unary(at.channel, DESCRIBE)(b"\xff\xff")
        assert isinstance(await error_of(undecodable), Unauthenticated)
        nowhere = raw_unary(at.channel, f"/{SERVICE}/Nowhere")(b"")
        assert isinstance(await error_of(nowhere), Unauthenticated)
        assert at.let_in == []


@pytest.mark.contract("C40", "C41")
async def test_somebody_known_is_let_in_where_a_role_allows_it() -> None:
    async with door() as at:
        await at.describe(("name", "alice"))
        assert at.let_in == [(KNOWN["alice"], KNOWN["alice"])]
        refused = await error_of(at.describe(("name", "watcher")))
        assert isinstance(refused, PermissionDenied)
        assert refused.reason == "ROLE_REQUIRED"
        assert refused.message == ("watcher may not call DescribeNode: it is for caller or operator, not for observer")


async def test_who_may_not_is_logged_about_once_a_second_however_often_somebody_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = CapturingLogger()
    monkeypatch.setattr(guard, "_log", log)  # whatever level other tests have had set
    async with door() as at:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for _ in range(20):
            await error_of(at.describe(("name", "watcher")))
        most = 1 + (loop.time() - begun)
    assert 1 <= len(log.calls) <= most
    told = log.calls[0]
    assert (told.method_name, told.args) == ("warning", ("not allowed",))
    assert told.kwargs["why"] == "watcher may not call DescribeNode: it is for caller or operator, not for observer"
    assert told.kwargs["peer"].startswith("ipv4:127.0.0.1:")


@pytest.mark.contract("C40")
async def test_nobody_may_call_what_the_policy_does_not_name() -> None:
    async with door() as at:
        refused = await error_of(raw_stream(at.channel, LINK)(metadata=[("name", "boss")]).read())
        assert isinstance(refused, PermissionDenied)
        assert refused.message == "boss may not call Link: nobody may"
        unknown = raw_unary(at.channel, f"/{SERVICE}/Nowhere")(b"", metadata=[("name", "boss")])
        assert isinstance(await error_of(unknown), Unimplemented)


async def test_health_is_told_to_everybody_and_methods_only_to_those_who_are_known() -> None:
    async with door() as at:
        health = await health_pb2_grpc.HealthStub(at.channel).Check(health_pb2.HealthCheckRequest())
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        assert isinstance(await error_of(raw_stream(at.channel, reflection)().read()), Unauthenticated)
        listing = raw_stream(at.channel, reflection)(metadata=[("name", "watcher")])
        await listing.write(b"\x3a\x01*")  # list_services
        assert SERVICE.encode() in await listing.read()


@pytest.mark.contract("C40")
async def test_a_coordinator_may_call_for_somebody_whom_it_lends_no_role_of_a_service() -> None:
    async with door() as at:
        await at.describe(("name", "c1"), *on_behalf_of(KNOWN["boss"]))
        await at.describe(("name", "c1"), (ON_BEHALF_OF, "alice/session-7"))
        await at.describe(("name", "c1"), *on_behalf_of(ANONYMOUS))
        boss, alice, anonymous = (principal for principal, _ in at.let_in)
        assert boss == KNOWN["boss"]
        assert alice == Principal("alice/session-7", frozenset({Role.CALLER}))
        assert anonymous == Principal("anonymous", frozenset({Role.CALLER, Role.OPERATOR, Role.OBSERVER}))
        assert {actor.name for _, actor in at.let_in} == {"c1"}
        assert at.logged[0]["principal"] == "boss"
        assert at.logged[0]["actor"] == "c1"

        service = await error_of(at.describe(("name", "c1"), (ON_BEHALF_OF, "x"), (ROLES, "coordinator,node")))
        assert isinstance(service, PermissionDenied)
        watching = await error_of(at.describe(("name", "c1"), (ON_BEHALF_OF, "x"), (ROLES, "observer")))
        assert isinstance(watching, PermissionDenied)


@pytest.mark.contract("C40")
async def test_a_producer_may_call_for_callers_only() -> None:
    async with door() as at:
        await at.describe(("name", "p1"), (ON_BEHALF_OF, "alice"), (ROLES, "caller,operator"))
        assert at.let_in[0][0] == KNOWN["alice"]


@pytest.mark.contract("C40")
@pytest.mark.parametrize("name", ["alice", "watcher", "boss"])
async def test_nobody_else_may_call_for_others(name: str) -> None:
    async with door() as at:
        refused = await error_of(at.describe(("name", name), (ON_BEHALF_OF, "bob")))
        assert isinstance(refused, PermissionDenied)
        assert refused.reason == "MAY_NOT_ACT_FOR_OTHERS"
        assert at.let_in == []


@pytest.mark.contract("C41")
@pytest.mark.parametrize(("key", "value"), [(ON_BEHALF_OF, "alice/../bob"), (ON_BEHALF_OF, ""), (ROLES, "king")])
async def test_to_call_for_somebody_impossible_is_the_callers_mistake(key: str, value: str) -> None:
    async with door() as at:
        told = {ON_BEHALF_OF: "alice", key: value}
        wrong = await error_of(at.describe(("name", "c1"), *told.items()))
        assert isinstance(wrong, InvalidArgument)
        assert wrong.violations[0].field == key


@pytest.mark.contract("C40")
async def test_without_any_way_to_know_callers_everybody_is_anonymous_and_it_is_said() -> None:
    seen: list[Principal] = []

    async def look() -> None:
        seen.append(current_principal())

    node = FakeNode(on_describe=look)  # type: ignore[abstract]
    service = Service(SERVICE, node, add_ExecutorNodeServicer_to_server, POLICY)
    with capture_logs() as logged:
        async with GrpcServer([service]) as server, open_channel(str(server.address)) as channel:
            await raw_unary(channel, DESCRIBE)(b"")
    assert seen == [ANONYMOUS]
    assert [line["log_level"] for line in logged if line["event"] == DEVELOPMENT_MODE] == ["warning"]


@pytest.mark.contract("C40", "C41")
@pytest.mark.parametrize(("messages", "size"), [(1, 10), (3, 1_000), (60, 100_000)])
async def test_who_is_refused_is_told_why_however_much_they_send(messages: int, size: int) -> None:
    async def requests() -> AsyncIterator[bytes]:
        for _ in range(messages):
            yield b"x" * size

    async with door() as at:
        told = await asyncio.gather(*(error_of(raw_stream(at.channel, LINK)(requests()).read()) for _ in range(20)))
        assert {type(error) for error in told} == {Unauthenticated}


@pytest.mark.contract("C40")
async def test_who_is_refused_and_goes_on_sending_is_not_heard_for_ever() -> None:
    async with door() as at:
        call = raw_stream(at.channel, LINK)()
        begun = asyncio.get_running_loop().time()
        async with asyncio.timeout(20):
            while not call.done():
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await call.write(b"more")
                await asyncio.sleep(0.05)
        assert asyncio.get_running_loop().time() - begun < 10
        silent = raw_stream(at.channel, LINK)()
        await silent.write(b"once")
        assert isinstance(await error_of(silent.read()), Unauthenticated)
