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
from google.protobuf.descriptor import MethodDescriptor
from google.rpc.error_details_pb2 import ErrorInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given, settings

from fanfold.v1 import coordinator_pb2, executor_node_pb2, job_registry_pb2, step_pb2
from faults.conversations import WORKING, requests
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


def calls_of(method: MethodDescriptor, calls: int) -> int:
    """How many of so many calls a method gets; those of which something is known that works get more."""
    shares = {each: 4 if each.full_name in WORKING else 1 for each in METHODS}
    return calls * shares[method] // sum(shares.values())


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Every service's address; the services run in a loop of their own, in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    stack = AsyncExitStack()

    async def start(workspace: Path) -> dict[str, str]:
        settings = {
            "placement": {"agent_unknown": 0.01, "unplaceable": 0.01, "cancel_wait": 5},
            "journal": {"path": str(workspace / "journal.db")},
        }
        mesh = await stack.enter_async_context(running_mesh(workspace, coordinator=settings))
        config = JobRegistryConfig.model_validate(
            {
                "listen": ANY_PORT,
                "metrics_listen": ANY_PORT,
                "store": {"path": str(workspace / "jobs.db")},
                "producers": {"grace": 1, "stop_deadline": 1},
                "open_jobs": True,
            }
        )
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
    calls = calls_of(method, LONG_CALLS if request.config.getoption("--long") else CALLS)
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
