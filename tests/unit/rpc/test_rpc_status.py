"""The error table, both ways."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import grpc
import pytest

from fanfold.errors import (
    FailedPrecondition,
    FanfoldError,
    FieldViolation,
    InternalError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from fanfold.rpc.call import REQUEST_ID_KEY
from fanfold.rpc.channels import open_channel
from fanfold.rpc.status import CODES, from_rpc_error, to_status, to_trailers
from fanfold.v1 import executor_node_pb2 as pb
from fanfold.v1.executor_node_pb2_grpc import ExecutorNodeStub
from unit.rpc.rpc_fakes import error_of, raw_stream, raw_unary, serving_node

TRAILERS_LIMIT = 8192
ENTRY_OVERHEAD = 32


def _from_core(code: grpc.StatusCode, details: str | None, *metadata: tuple[str, bytes]) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), details=details)


def _told(error: FanfoldError) -> FanfoldError:
    """What a client makes of the status of `error`."""
    status = to_status(error)
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    metadata = grpc.aio.Metadata(*to_trailers(status))
    return from_rpc_error(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details=status.message))


def test_every_error_class_has_a_code_of_its_own() -> None:
    assert set(CODES) == set(FanfoldError.__subclasses__())
    assert len(set(CODES.values())) == len(CODES)


@pytest.mark.contract("C41")
@pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.__name__)
async def test_an_error_of_a_servicer_reaches_the_client_as_itself(kind: type[FanfoldError]) -> None:
    async def fail() -> None:
        raise kind("it snows: 雪 ☃\n100 %", reason="IT_SNOWS")

    async with serving_node() as up:
        up.node.on_describe = up.node.on_watch = fail
        watching = up.stub.WatchNode(pb.WatchNodeRequest())
        await watching.read()
        for error in (await error_of(up.describe()), await error_of(watching.read())):
            assert type(error) is kind
            assert (error.message, error.reason) == ("it snows: 雪 ☃\n100 %", "IT_SNOWS")
            assert error.retry_delay is None


@pytest.mark.contract("C41")
async def test_field_violations_reach_the_client() -> None:
    violations = (FieldViolation("steps[3].task_id", "must not be empty"), FieldViolation("steps[4].grüße", "☃"))

    async def fail() -> None:
        raise InvalidArgument(violations=violations)

    async with serving_node() as up:
        up.node.on_describe = fail
        error = await error_of(up.describe())
    assert isinstance(error, InvalidArgument)
    assert error.violations == violations
    assert error.message == "steps[3].task_id: must not be empty; steps[4].grüße: ☃"
    assert error.reason == "INVALID_ARGUMENT"


@pytest.mark.contract("C41", "C10")
async def test_the_retry_delay_reaches_the_client() -> None:
    async def fail() -> None:
        raise ResourceExhausted("8 of 8 steps run", reason="NODE_FULL", retry_delay=0.25)

    async with serving_node() as up:
        up.node.on_describe = fail
        error = await error_of(up.describe())
    assert isinstance(error, ResourceExhausted)
    assert (error.reason, error.retry_delay) == ("NODE_FULL", 0.25)


@pytest.mark.parametrize(
    ("delay", "told"), [(0.0, 0.0), (-3.0, 0.0), (float("nan"), 0.0), (float("inf"), 604800.0), (None, None)]
)
def test_retry_delays_that_make_no_sense_are_bounded(delay: float | None, told: float | None) -> None:
    assert _told(Unavailable(retry_delay=delay)).retry_delay == told


def test_a_subclass_is_answered_as_the_class_in_the_table() -> None:
    class JobNotFound(NotFound):
        pass

    error = _told(JobNotFound("no job", reason="JOB_UNKNOWN"))
    assert type(error) is NotFound
    assert error.reason == "JOB_UNKNOWN"


@pytest.mark.contract("C41", "F11")
async def test_the_longest_error_fits_into_the_trailers() -> None:
    violations = [FieldViolation("☃" * 500, "雪" * 5000)] * 40
    worst = InvalidArgument("☃\x01" * 9000, violations=violations, reason="R" * 500)

    async def fail() -> None:
        raise worst

    async with serving_node() as up:
        up.node.on_describe = fail
        error = await error_of(up.stub.DescribeNode(pb.DescribeNodeRequest(), metadata=((REQUEST_ID_KEY, "i" * 128),)))
    assert isinstance(error, InvalidArgument)
    assert error.message.startswith("☃\x01☃")
    assert error.message.endswith("…")
    assert error.violations[0].field == "☃" * 84 + "…"
    assert error.violations[-1] == FieldViolation("", "and 30 more")

    status = to_status(worst)
    [(key, details)] = to_trailers(status)
    base64_of_details = (len(details) + 2) // 3 * 4
    entries = {"grpc-message": len(quote(status.message, safe="")), key: base64_of_details, REQUEST_ID_KEY: 128}
    entries |= {"grpc-status": 1, "content-type": len("application/grpc")}
    assert sum(len(name) + size + ENTRY_OVERHEAD for name, size in entries.items()) <= TRAILERS_LIMIT


def test_a_violation_more_than_fits_is_counted_not_dropped_silently() -> None:
    error = _told(InvalidArgument(violations=[FieldViolation(f"steps[{i}]", "x" * 100) for i in range(20)]))
    assert isinstance(error, InvalidArgument)
    told = len(error.violations) - 1
    assert 10 <= told < 20
    assert error.violations[-1] == FieldViolation("", f"and {20 - told} more")


def test_lone_surrogates_do_not_break_the_answer() -> None:
    error = _told(InvalidArgument("bad \ud800 text", violations=[FieldViolation("a\udfff", "b")]))
    assert isinstance(error, InvalidArgument)
    assert error.message == "bad ? text"
    assert error.violations[0].field == "a?"


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_statuses_without_details_map_by_code(code: grpc.StatusCode) -> None:
    expected = {known: kind for kind, known in CODES.items()} | {
        grpc.StatusCode.ALREADY_EXISTS: FailedPrecondition,
        grpc.StatusCode.UNKNOWN: InternalError,
        grpc.StatusCode.DATA_LOSS: InternalError,
    }
    error = from_rpc_error(_from_core(code, "as the core says"))
    assert type(error) is expected[code]
    assert error.message == "as the core says"
    assert error.reason == expected[code].default_reason


@pytest.mark.parametrize("garbage", [b"\xff\xff", b"", to_status(NotFound("another message")).SerializeToString()])
def test_details_that_contradict_the_status_are_not_believed(garbage: bytes) -> None:
    error = from_rpc_error(_from_core(grpc.StatusCode.ABORTED, "held", ("grpc-status-details-bin", garbage)))
    assert (type(error).__name__, error.message, error.reason) == ("Aborted", "held", "ABORTED")


def test_a_status_without_a_message_is_named_by_its_code() -> None:
    assert from_rpc_error(_from_core(grpc.StatusCode.ABORTED, None)).message == "ABORTED"


def test_reasons_of_another_domain_are_not_taken_for_ours() -> None:
    status = to_status(NotFound(reason="OURS"))
    status.details[0].value = status.details[0].value.replace(b"fanfold", b"example")
    metadata = grpc.aio.Metadata(*to_trailers(status))
    error = from_rpc_error(grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, metadata, metadata, status.message))
    assert error.reason == "NOT_FOUND"


async def test_a_server_that_is_not_there_is_unavailable_and_named() -> None:
    async with serving_node() as up:
        address = str(up.server.address)
    async with open_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await ExecutorNodeStub(channel).DescribeNode(pb.DescribeNodeRequest())
    error = from_rpc_error(raised.value, address)
    assert isinstance(error, Unavailable)
    assert error.message == f"{address} cannot be reached: Connection refused"


@pytest.mark.parametrize(
    ("told", "cause", "reason"),
    [
        ("Socket closed", "Socket closed", "UNAVAILABLE"),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv6:%5B::1%5D:1: Failed to connect to remote "
            "host: connect: Connection refused (111)",
            "Connection refused",
            "NO_CONNECTION",
        ),
        (
            "errors resolving no.invalid:1: [field:hostname lookup error:address lookup failed for no.invalid:1: "
            "Domain name not found]",
            "Domain name not found",
            "NO_CONNECTION",
        ),
        (
            "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:80: Failed parsing HTTP/2 "
            "(Expected SETTINGS frame as the first frame, got frame type 80)",
            "what answers there does not speak gRPC",
            "NOT_GRPC",
        ),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7400: Tls handshake failed "
            "(TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:100000f7:SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER: "
            "Invalid certificate verification context: OK",
            "what answers there does not speak TLS",
            "UNAVAILABLE",
        ),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7400: Tls handshake failed "
            "(TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"
            "CERTIFICATE_VERIFY_FAILED: certificate has expired: OK",
            "its certificate is not trusted: certificate has expired",
            "NO_CONNECTION",
        ),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7400: Hostname Verification Check "
            "failed.",
            "its certificate has other names than that; FANFOLD_SERVER_NAME, or server_name, says which it is to have",
            "NO_CONNECTION",
        ),
        (
            "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:7400: Socket closed",
            "Socket closed, as where TLS is wanted",
            "NO_CONNECTION",
        ),
    ],
)
def test_of_what_grpc_says_about_a_connection_the_cause_is_told(told: str, cause: str, reason: str) -> None:
    core = _from_core(grpc.StatusCode.UNAVAILABLE, told)
    for address, prefix in (("", ""), ("host:1", "host:1 cannot be reached: ")):
        error = from_rpc_error(core, address)
        assert (error.message, error.reason) == (prefix + cause, reason)


async def test_a_call_whose_status_grpc_has_lost_is_unavailable_and_not_our_fault() -> None:
    """A message that cannot be written any more has grpc.aio forget what the call was answered (grpc/grpc#36066)."""
    async with serving_node() as up, open_channel(str(up.server.address)) as channel:
        call: Any = ExecutorNodeStub(channel).Link()
        call._cython_call.set_internal_error("Failed execute_batch")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call.read()
    error = from_rpc_error(raised.value, "host:1")
    assert (type(error), error.reason) == (Unavailable, "CALL_BROKEN")


@pytest.mark.contract("C43")
async def test_calls_that_come_while_their_server_is_being_taken_down_are_unavailable() -> None:
    async def answer(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await context.write(b"")

    async def outcome(call: Any) -> type[Exception] | None:
        try:
            await call.read()
        except grpc.aio.AioRpcError as error:
            return type(from_rpc_error(error, "host:1"))
        return None

    handler: Any = grpc.unary_stream_rpc_method_handler(answer)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Test", {"Ask": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        method: Any = channel.unary_stream("/Test/Ask")
        assert await outcome(method(b"")) is None
        calls = [asyncio.ensure_future(outcome(method(b""))) for _ in range(30)]
        stopping = asyncio.ensure_future(server.stop(0.2))
        await asyncio.sleep(0)
        calls += [asyncio.ensure_future(outcome(method(b""))) for _ in range(30)]
        found = set(await asyncio.gather(*calls))
        await stopping
    assert Unavailable in found
    assert found <= {Unavailable, None}


@pytest.mark.contract("F11")
@pytest.mark.parametrize("side", ["server", "client"])
async def test_a_message_above_the_limit_is_told_apart_from_other_limits(side: str) -> None:
    async with serving_node() as up:
        if side == "server":
            call = raw_unary(up.channel, "/fanfold.v1.ExecutorNode/DescribeNode")
            error = await error_of(call(bytes(16 * 1024 * 1024 + 1)))
        else:
            async with open_channel(str(up.server.address), max_response_bytes=8) as channel:
                error = await error_of(_reflected(channel))
        assert isinstance(error, ResourceExhausted)
        assert error.reason == "MESSAGE_TOO_LARGE"
        assert error.retry_delay is None
        await up.describe()


async def _reflected(channel: grpc.aio.Channel) -> None:
    """Ask for more than eight bytes."""
    method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    call = raw_stream(channel, method)()
    await call.write(b"\x3a\x00")
    await call.done_writing()
    async for _ in call:
        pass
