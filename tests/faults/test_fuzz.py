"""Whatever a client sends, it gets an answer that is its own fault or none at all, and says why to machines (C41).

Every RPC of every service is called with messages made from its descriptors, with raw bytes, and with streams of
both. `make test` makes 500 calls, `make faults` 50,000; hypothesis prints what to reproduce a failure with.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.rpc.error_details_pb2 import ErrorInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fanfold.v1 import coordinator_pb2, executor_node_pb2, job_registry_pb2, step_pb2
from job_registry.app import running as running_registry
from job_registry.config import JobRegistryConfig
from support.mesh import ANY_PORT, running_mesh

pytestmark = [pytest.mark.process, pytest.mark.contract("C41")]

SERVICES = [
    coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"],
    executor_node_pb2.DESCRIPTOR.services_by_name["ExecutorNode"],
    job_registry_pb2.DESCRIPTOR.services_by_name["JobRegistry"],
]
METHODS = [method for service in SERVICES for method in service.methods]
CALLS, LONG_CALLS = 500, 50_000
CALL_SECONDS = 0.3
"""Calls that would last are cut off after this; a stream that the server keeps open is no fault."""

OURS_TO_AVOID = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS}
MADE_BY_THE_CLIENT = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
"""Statuses that a client's own gRPC gives a call that it cut off, without asking the server."""

words = st.sampled_from(
    ["", "a", "noop", "sleep", "read", "run-1/a/1", "../../etc/passwd", "{", "[" * 200, "\x00", "é"]
)
text = words | st.text(max_size=30)
numbers = st.sampled_from([0, 1, 2, 2**31 - 1, 2**32 - 1, 2**63 - 1, -1, -(2**31)])
raw_bytes = st.binary(max_size=60)


def values(field: Any, depth: int) -> st.SearchStrategy[Any]:
    """Values that a field of a message may be set to."""
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_MESSAGE:
            return messages(field.message_type, depth - 1)
        case FieldDescriptor.CPPTYPE_STRING:
            return raw_bytes if field.type == FieldDescriptor.TYPE_BYTES else text
        case FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.CPPTYPE_ENUM:
            return st.integers(-2, len(field.enum_type.values) + 1)
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return st.floats(width=32)
        case FieldDescriptor.CPPTYPE_UINT32 | FieldDescriptor.CPPTYPE_UINT64:
            limit = 2**32 if field.cpp_type == FieldDescriptor.CPPTYPE_UINT32 else 2**64
            return numbers.map(lambda number: number % limit)
        case FieldDescriptor.CPPTYPE_INT32:
            return numbers.map(lambda number: max(-(2**31), min(number, 2**31 - 1)))
        case _:
            return numbers


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor, depth: int = 4) -> Any:
    """A message of a type, with any of its fields set to something."""
    message: Any = message_factory.GetMessageClass(descriptor)()
    fields = [field for field in descriptor.fields if depth > 0 or field.message_type is None]
    for field in draw(st.lists(st.sampled_from(fields), unique_by=lambda one: one.name)) if fields else []:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name).update(draw(st.dictionaries(text, text, max_size=3)))
        elif field.is_repeated:
            target = getattr(message, field.name)
            for value in draw(st.lists(values(field, depth), max_size=3)):
                target.add().CopyFrom(value) if field.message_type else target.append(value)
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(draw(values(field, depth)))
        else:
            setattr(message, field.name, draw(values(field, depth)))
    return message


def requests(method: MethodDescriptor) -> st.SearchStrategy[list[bytes]]:
    """What a client may send: typed messages, typed messages cut short, and bytes."""
    typed = messages(method.input_type).map(lambda message: message.SerializeToString())
    cut = st.tuples(typed, st.integers(0, 40)).map(lambda pair: pair[0][: pair[1]])
    one = typed | typed | cut | raw_bytes
    return st.lists(one, max_size=4) if method.client_streaming else st.lists(one, min_size=1, max_size=1)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Every service's address; the services run in a loop of their own, in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    stack = AsyncExitStack()

    async def start(workspace: Path) -> dict[str, str]:
        patience = {"placement": {"agent_unknown": 0.01, "unplaceable": 0.01, "cancel_wait": 5}}
        mesh = await stack.enter_async_context(running_mesh(workspace, coordinator=patience))
        config = JobRegistryConfig(listen=ANY_PORT, metrics_listen=ANY_PORT)
        registry = await stack.enter_async_context(running_registry(config))
        served = [mesh.coordinator.address, mesh.nodes[0].address, registry.address]
        return {service.full_name: address for service, address in zip(SERVICES, served, strict=True)}

    try:
        yield asyncio.run_coroutine_threadsafe(start(tmp_path_factory.mktemp("workspace")), loop).result(30)
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def answers(channel: grpc.Channel, path: str, sent: list[bytes], seconds: float) -> list[bytes]:
    """What a call with any number of messages answers; a unary method takes it as well."""
    call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(path)
    return list(call(iter(sent), timeout=seconds))


def error_of(channel: grpc.Channel, method: MethodDescriptor, sent: list[bytes]) -> grpc.RpcError | None:
    """The error that a call ends with, if it does."""
    try:
        answers(channel, f"/{method.containing_service.full_name}/{method.name}", sent, CALL_SECONDS)
    except grpc.RpcError as error:
        return error
    return None


def reason_of(error: Any) -> str:
    """The reason in an error's google.rpc.ErrorInfo, which agrees with the status; empty if it has none of ours."""
    details = [value for key, value in error.trailing_metadata() or () if key == "grpc-status-details-bin"]
    if not details:
        return ""
    (status,) = map(Status.FromString, details)
    assert (status.code, status.message) == (error.code().value[0], error.details())
    info = ErrorInfo()
    for detail in status.details:
        if detail.Unpack(info):
            return str(info.reason) if info.domain == "fanfold" else ""
    return ""


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.containing_service.name}.{method.name}")
def test_no_input_is_the_services_fault(
    method: MethodDescriptor, addresses: dict[str, str], request: pytest.FixtureRequest
) -> None:
    calls = (LONG_CALLS if request.config.getoption("--long") else CALLS) // len(METHODS)
    with grpc.insecure_channel(addresses[method.containing_service.full_name]) as channel:

        @settings(max_examples=calls, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(requests(method))
        def fuzz(sent: list[bytes]) -> None:
            error: Any = error_of(channel, method, sent)
            if error is None or error.code() in MADE_BY_THE_CLIENT:
                return
            told = f"{error.code().name}: {error.details()}"
            assert error.code() not in OURS_TO_AVOID, told
            assert "Traceback" not in error.details()
            assert re.fullmatch("[A-Z][A-Z0-9_]*", reason_of(error)), f"no google.rpc.ErrorInfo of ours with {told}"

        fuzz()
        assert answers(channel, "/grpc.health.v1.Health/Check", [b""], 5) == [b"\x08\x01"], "it does not serve any more"


def test_the_mesh_is_clean_after_all_that(addresses: dict[str, str]) -> None:
    with grpc.insecure_channel(addresses["fanfold.v1.Coordinator"]) as channel:
        step = step_pb2.AgentStepSpec(task_id="t", agent="noop", description="d", prompt="still here")
        call = coordinator_pb2.CoordinatorExecuteStepRequest(step=step).SerializeToString()
        (answer,) = answers(channel, "/fanfold.v1.Coordinator/ExecuteStep", [call], 10)
        (event,) = coordinator_pb2.CoordinatorExecuteStepResponse.FromString(answer).events
        assert event.ended.outcome.output == "still here"
    with grpc.insecure_channel(addresses["fanfold.v1.ExecutorNode"]) as channel:
        (described,) = answers(channel, "/fanfold.v1.ExecutorNode/DescribeNode", [b""], 5)
        assert executor_node_pb2.DescribeNodeResponse.FromString(described).node.status.running_steps == 0
