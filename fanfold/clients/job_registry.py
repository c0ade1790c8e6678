"""Finds, follows and stops jobs, over gRPC (`fanfold.v1.JobRegistry`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from copy import copy
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import grpc.aio

from fanfold.backoff import Absence, full_jitter
from fanfold.errors import DRAINING, FailedPrecondition, FanfoldError, Unavailable, is_interruption
from fanfold.model.job import ALL_JOBS, Job, JobChanges, JobFilter, JobPage, OutputPiece
from fanfold.model.principal import Principal, Role
from fanfold.rpc.auth.acting import Metadata, on_behalf_of
from fanfold.rpc.channels import open_channel
from fanfold.rpc.credentials import NO_CREDENTIALS, Credentials
from fanfold.rpc.status import from_rpc_error
from fanfold.v1 import job_registry_pb2 as pb
from fanfold.v1.job_registry_pb2_grpc import JobRegistryStub
from fanfold.wire.job import (
    job_changes_from_proto,
    job_filter_to_proto,
    job_from_proto,
    job_page_from_proto,
    output_piece_from_proto,
)
from fanfold.wire.time import set_duration

if TYPE_CHECKING:
    from fanfold.v1.job_registry_pb2_grpc import JobRegistryAsyncStub

RECONNECT_TIMEOUT = 60.0
"""Seconds that a registry may be away before whoever follows something there is told."""

LONGEST_WAIT = 60.0
"""Seconds of one WaitJob call; longer waits take several."""

LONGEST_PAUSE = 2.0

DRAINING_SECONDS = 5.0
"""Seconds in which a call that a stopping registry has refused is tried again."""

_Answer = TypeVar("_Answer")


class JobRegistryClient:
    """Implements `JobRegistry`: a connection to a registry, to be entered.

    What lasts goes on after a connection that broke, where it was, as long as the registry is not away for more than
    `reconnect_timeout` seconds.
    """

    def __init__(
        self,
        registry: str,
        *,
        reconnect_timeout: float = RECONNECT_TIMEOUT,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        self.registry = registry
        self._reconnect_timeout = reconnect_timeout
        self._channel = open_channel(registry, field="registry", credentials=credentials)
        self._stub: JobRegistryAsyncStub = JobRegistryStub(self._channel)
        self._metadata: Metadata = ()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        await self._channel.close()

    def acting_for(self, owner: str) -> Self:
        """The same connection for calls that are made for `owner`, as a service may."""
        other = copy(self)
        other._metadata = on_behalf_of(Principal(owner, frozenset({Role.CALLER})))
        return other

    async def get_job(self, job_id: str) -> Job:
        """How a job fares."""
        request = pb.GetJobRequest(job_id=job_id)
        response = await self._answer(lambda: self._open_stub().GetJob(request, metadata=self._metadata))
        return job_from_proto(response.job)

    async def list_jobs(self, wanted: JobFilter = ALL_JOBS, *, page_size: int = 100, page_token: str = "") -> JobPage:
        """One page of jobs, newest first."""
        request = pb.ListJobsRequest(page_size=page_size, page_token=page_token, filter=job_filter_to_proto(wanted))
        response = await self._answer(lambda: self._open_stub().ListJobs(request, metadata=self._metadata))
        return job_page_from_proto(response)

    async def watch_jobs(self, cursor: str = "", wanted: JobFilter = ALL_JOBS) -> AsyncGenerator[JobChanges, None]:
        """Changes of jobs from a cursor on, or from now on."""
        patience = _Patience(self._reconnect_timeout)
        while True:
            request = pb.WatchJobsRequest(cursor=cursor, filter=job_filter_to_proto(wanted))
            call = self._open_stub().WatchJobs(request, metadata=self._metadata)
            try:
                with self._errors():
                    async for response in call:
                        patience.restored()
                        cursor = response.cursor
                        yield job_changes_from_proto(response)
                error: FanfoldError = Unavailable("the registry closed the stream")
            except FanfoldError as raised:
                error = raised
            finally:
                call.cancel()
            await patience.lost(error)

    async def wait_job(self, job_id: str, timeout: float = 60.0) -> Job:
        """The job once it is settled, or as it is when the time is over, in seconds."""
        patience = _Patience(self._reconnect_timeout)
        until = time.monotonic() + timeout
        while True:
            left = max(0.0, until - time.monotonic())
            request = pb.WaitJobRequest(job_id=job_id)
            set_duration(request.timeout, min(left, LONGEST_WAIT))
            try:
                with self._errors():
                    job = job_from_proto((await self._open_stub().WaitJob(request, metadata=self._metadata)).job)
            except FanfoldError as error:
                if not left:
                    raise
                await patience.lost(error)
                continue
            patience.restored()
            if job.state.is_settled or left <= LONGEST_WAIT:
                return job

    async def read_output(
        self, job_id: str, source: str = "", *, offset: int = 0, follow: bool = False
    ) -> AsyncGenerator[OutputPiece, None]:
        """Output of a source from a byte on; every byte that is held once, with the gaps told."""
        patience = _Patience(self._reconnect_timeout)
        while True:
            request = pb.ReadJobOutputRequest(job_id=job_id, source=source, offset=offset, follow=follow)
            call = self._open_stub().ReadJobOutput(request, metadata=self._metadata)
            try:
                with self._errors():
                    async for response in call:
                        patience.restored()
                        piece = output_piece_from_proto(response)
                        offset = piece.offset + len(piece.data)
                        yield piece
            except FanfoldError as error:
                await patience.lost(error)
            else:
                return
            finally:
                call.cancel()

    async def read_result(self, job_id: str) -> AsyncGenerator[bytes, None]:
        """The parts of a settled job's result."""
        patience = _Patience(self._reconnect_timeout)
        told = 0
        while True:
            call = self._open_stub().GetJobResult(pb.GetJobResultRequest(job_id=job_id), metadata=self._metadata)
            skipped = told
            try:
                with self._errors():
                    async for response in call:
                        patience.restored()
                        data = response.data[skipped:]
                        skipped -= len(response.data) - len(data)
                        told += len(data)
                        if data:
                            yield data
            except FanfoldError as error:
                await patience.lost(error)
            else:
                return
            finally:
                call.cancel()

    async def cancel_job(self, job_id: str, reason: str = "") -> Job:
        """Ask a job to stop."""
        request = pb.CancelJobRequest(job_id=job_id, reason=reason)
        response = await self._answer(lambda: self._open_stub().CancelJob(request, metadata=self._metadata))
        return job_from_proto(response.job)

    async def delete_job(self, job_id: str) -> None:
        """Remove a settled job."""
        request = pb.DeleteJobRequest(job_id=job_id)
        await self._answer(lambda: self._open_stub().DeleteJob(request, metadata=self._metadata))

    async def _answer(self, ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """What a call is answered. A registry that is stopping has done nothing for it; another may take its place."""
        patience = _Patience(DRAINING_SECONDS)
        while True:
            try:
                with self._errors():
                    return await ask()
            except Unavailable as error:
                if error.reason != DRAINING:
                    raise
                await patience.lost(error)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What a call fails with, as the error that it stands for."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self.registry) from None

    def _open_stub(self) -> JobRegistryAsyncStub:
        if self._closed:
            raise FailedPrecondition("this connection to the job registry is closed; use it within its `with` block")
        return self._stub


class _Patience:
    """How long a registry may be away, in seconds from when it was lost."""

    def __init__(self, seconds: float) -> None:
        self._absence = Absence(seconds)

    def restored(self) -> None:
        """It has answered."""
        self._absence.end()

    async def lost(self, error: FanfoldError) -> None:
        """Pause before it is called again. Raises `error` when that is no use, or it has been away for too long."""
        if not is_interruption(error):
            raise error
        left = self._absence.seconds_left(error)
        await asyncio.sleep(min(full_jitter(self._absence.failures, first=0.2, most=LONGEST_PAUSE), left))
