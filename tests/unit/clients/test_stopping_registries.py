"""Calls that reach a registry which is about to stop (C43)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_status import rpc_status  # type: ignore[import-untyped]

from fanfold.clients.job_registry import JobRegistryClient
from fanfold.errors import FanfoldError, Unavailable
from fanfold.rpc.status import to_status
from fanfold.v1 import job_pb2
from fanfold.v1 import job_registry_pb2 as pb
from support.mesh import ANY_PORT

STOPPING = Unavailable("the server is stopping", reason="DRAINING")


class Registry:
    """Answers calls with these errors, one after the other, and then with jobs."""

    def __init__(self, *errors: FanfoldError) -> None:
        self.calls = 0
        self._errors = list(errors)

    async def _get(self, request: Any, context: Any) -> pb.GetJobResponse:
        return pb.GetJobResponse(job=await self._job(request.job_id, context))

    async def _cancel(self, request: Any, context: Any) -> pb.CancelJobResponse:
        return pb.CancelJobResponse(job=await self._job(request.job_id, context))

    async def _job(self, job_id: str, context: Any) -> job_pb2.Job:
        self.calls += 1
        if self._errors:
            await context.abort_with_status(rpc_status.to_status(to_status(self._errors.pop(0))))
        return job_pb2.Job(id=job_id, state=job_pb2.JOB_STATE_RUNNING)

    def methods(self) -> grpc.GenericRpcHandler:
        """What serves it."""
        get = grpc.unary_unary_rpc_method_handler(
            self._get, pb.GetJobRequest.FromString, pb.GetJobResponse.SerializeToString
        )
        cancel = grpc.unary_unary_rpc_method_handler(
            self._cancel, pb.CancelJobRequest.FromString, pb.CancelJobResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler("fanfold.v1.JobRegistry", {"GetJob": get, "CancelJob": cancel})


@asynccontextmanager
async def asked(registry: Registry) -> AsyncIterator[JobRegistryClient]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([registry.methods()])
    port = server.add_insecure_port(ANY_PORT)
    await server.start()
    try:
        async with JobRegistryClient(f"127.0.0.1:{port}") as client:
            yield client
    finally:
        await server.stop(None)


@pytest.mark.contract("C43")
async def test_a_call_that_a_stopping_registry_refuses_is_made_again_for_the_one_in_its_place() -> None:
    registry = Registry(STOPPING, STOPPING)
    async with asked(registry) as client:
        assert (await client.get_job("k-1")).id == "k-1"
        assert registry.calls == 3
        assert (await client.cancel_job("k-2", "enough")).id == "k-2"


async def test_a_call_that_a_registry_cannot_answer_for_another_reason_is_not_made_again() -> None:
    registry = Registry(Unavailable("its store is away", reason="STORE_FAILED"))
    async with asked(registry) as client:
        with pytest.raises(Unavailable, match="its store is away"):
            await client.get_job("k-1")
    assert registry.calls == 1
