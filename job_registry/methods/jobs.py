"""Methods about jobs, for those who may see them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from fanfold.errors import InvalidArgument
from fanfold.model.job import JobChanges, JobPage
from fanfold.model.validation import parse_line
from fanfold.rpc.call import current_principal
from fanfold.v1 import job_registry_pb2 as pb
from fanfold.v1.job_registry_pb2_grpc import JobRegistryServicer as GeneratedServicer
from fanfold.wire.job import job_changes_to_proto, job_filter_from_proto, job_page_to_proto, job_to_proto
from fanfold.wire.paging import key_of_token, page_size_of, page_token
from job_registry.limits import MAX_WORDS
from job_registry.methods.production import Context
from job_registry.queries import Queries
from job_registry.store.store import ChangesGone

MAX_JOB_ID = 128
DEFAULT_WAIT = 60.0
MAX_WAIT = 3600.0


class JobMethods(GeneratedServicer):
    """GetJob, ListJobs, WatchJobs, WaitJob, CancelJob, DeleteJob."""

    _queries: Queries

    async def GetJob(self, request: pb.GetJobRequest, context: Context) -> pb.GetJobResponse:  # noqa: N802
        """Tell how a job fares."""
        job = await self._queries.get(current_principal(), job_id_of(request.job_id))
        return pb.GetJobResponse(job=job_to_proto(job))

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsResponse:  # noqa: N802
        """List the jobs that the caller may see."""
        size = page_size_of(request.page_size)
        wanted = job_filter_from_proto(request.filter)
        before = key_of_token(request.page_token, int)[0] if request.page_token else None
        page = await self._queries.list_jobs(current_principal(), wanted, size, before)
        token = "" if page.last_number is None else page_token(page.last_number)
        cursor = self._cursor_of(page.position)
        return job_page_to_proto(JobPage(jobs=page.jobs, next_page_token=token, watch_cursor=cursor))

    async def WatchJobs(  # noqa: N802
        self, request: pb.WatchJobsRequest, context: Context
    ) -> AsyncIterator[pb.WatchJobsResponse]:
        """Follow jobs."""
        wanted = job_filter_from_proto(request.filter)
        position = self._position_of(request.cursor) if request.cursor else None
        async with aclosing(self._queries.watch(current_principal(), wanted, position)) as changes:
            async for jobs, reached in changes:
                yield job_changes_to_proto(JobChanges(jobs=jobs, cursor=self._cursor_of(reached)))

    async def WaitJob(self, request: pb.WaitJobRequest, context: Context) -> pb.WaitJobResponse:  # noqa: N802
        """Wait until a job is settled."""
        timeout = request.timeout
        seconds = timeout.seconds + timeout.nanos / 1e9 if request.HasField("timeout") else DEFAULT_WAIT
        if not 0 <= seconds <= MAX_WAIT:
            raise InvalidArgument.of_field("timeout", f"must be from 0 to {MAX_WAIT:.0f} seconds")
        job = await self._queries.wait(current_principal(), job_id_of(request.job_id), seconds)
        return pb.WaitJobResponse(job=job_to_proto(job))

    async def CancelJob(self, request: pb.CancelJobRequest, context: Context) -> pb.CancelJobResponse:  # noqa: N802
        """Ask a job to stop."""
        reason = parse_line(request.reason, path="reason", most=MAX_WORDS)
        job = await self._queries.cancel(current_principal(), job_id_of(request.job_id), reason)
        return pb.CancelJobResponse(job=job_to_proto(job))

    async def DeleteJob(self, request: pb.DeleteJobRequest, context: Context) -> pb.DeleteJobResponse:  # noqa: N802
        """Remove a settled job."""
        await self._queries.delete(current_principal(), job_id_of(request.job_id))
        return pb.DeleteJobResponse()

    def _cursor_of(self, position: int) -> str:
        return page_token(self._queries.store_identity, position)

    def _position_of(self, cursor: str) -> int:
        try:
            identity, position = key_of_token(cursor, str, int)
        except InvalidArgument:
            raise InvalidArgument.of_field("cursor", "must be a cursor that this service gave") from None
        if identity != self._queries.store_identity or position < 0:
            raise ChangesGone
        return int(position)


def job_id_of(text: str) -> str:
    """A job's id as it may be asked for. Raises InvalidArgument for what can be none."""
    return parse_line(text, path="job_id", most=MAX_JOB_ID, required=True)
