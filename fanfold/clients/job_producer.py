"""Registers jobs and carries their lives, over gRPC (`JobRegistry.ProduceJob`)."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Self

from fanfold.clients.job_output import JobOutput
from fanfold.clients.production import GrpcProduction, NewJob
from fanfold.model.job import JobSpec
from fanfold.model.trace import TraceContext
from fanfold.ports import Start
from fanfold.rpc.channels import open_channel
from fanfold.rpc.credentials import NO_CREDENTIALS, Credentials
from fanfold.v1.job_registry_pb2_grpc import JobRegistryStub

if TYPE_CHECKING:
    from fanfold.v1.job_registry_pb2_grpc import JobRegistryAsyncStub


class GrpcJobProducer:
    """Implements `JobProducer`: a connection to a registry, to be entered. Leaving it lets every job go."""

    def __init__(self, registry: str, *, credentials: Credentials = NO_CREDENTIALS) -> None:
        self.registry = registry
        self._channel = open_channel(registry, field="registry", credentials=credentials)
        self._stub: JobRegistryAsyncStub = JobRegistryStub(self._channel)
        self._productions: set[GrpcProduction] = set()
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await asyncio.gather(*(production.let_go() for production in list(self._productions)))
            await self._tasks.__aexit__(None, None, None)
        finally:
            await self._channel.close()

    async def open_job(
        self,
        spec: JobSpec,
        request_id: str,
        *,
        epoch: int,
        start: Start,
        owner: str = "",
        trace: TraceContext | None = None,
    ) -> GrpcProduction:
        """Register a job (JobProducer.open_job)."""
        new = NewJob(spec=spec, request_id=request_id, start=start, owner=owner)
        production = self._kept(GrpcProduction(self._stub.ProduceJob, self.registry, epoch=epoch, new=new, trace=trace))
        try:
            await production.committed()
        except BaseException:
            await production.let_go()
            raise
        return production

    def reattach(
        self, job_id: str, *, epoch: int, rewrites: bool = False, trace: TraceContext | None = None
    ) -> GrpcProduction:
        """Go on with a job (JobProducer.reattach)."""
        output = JobOutput(rewrites=rewrites)
        call = self._stub.ProduceJob
        return self._kept(GrpcProduction(call, self.registry, epoch=epoch, job_id=job_id, output=output, trace=trace))

    def _kept(self, production: GrpcProduction) -> GrpcProduction:
        production.keeping = self._tasks.create_task(production.keep())
        self._productions.add(production)
        production.keeping.add_done_callback(lambda _: self._productions.discard(production))
        return production
