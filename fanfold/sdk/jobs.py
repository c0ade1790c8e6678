"""Jobs: work that goes on without whoever began it, and is found again in the job registry (C31)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from fanfold.clients.job_registry import JobRegistryClient
from fanfold.errors import InvalidArgument
from fanfold.model.job import Job, JobChanges, JobFilter, JobState, OutputPiece
from fanfold.rpc.credentials import Credentials
from fanfold.settings import client_settings

MAX_PAGE = 1_000
LONG_SECONDS = 3_600.0


class Jobs:
    """The jobs that the caller may see: `mesh.jobs`, or `async with Jobs() as jobs: ...`.

    `registry` is the job registry's host:port; without it FANFOLD_REGISTRY says, or 127.0.0.1:7401. What lasts goes on
    when the connection breaks, where it was, unless the registry is away for more than `reconnect_timeout` seconds.
    Every method raises NotFound for a job that is not there, and for somebody else's, and Unavailable when the registry
    cannot be reached.
    """

    def __init__(
        self,
        registry: str | None = None,
        *,
        reconnect_timeout: float = 60.0,
        credentials: Credentials | None = None,
    ) -> None:
        self._registry = registry or ""
        self._reconnect_timeout = reconnect_timeout
        self._credentials = credentials
        self._stack = AsyncExitStack()
        self._connected: JobRegistryClient | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def registry(self) -> str:
        """The registry that is asked, as host:port."""
        return self._registry or client_settings().registry

    async def list(
        self,
        *,
        owner: str = "",
        kind: str = "",
        states: Collection[JobState | str] = (),
        label: str = "",
        parent: str = "",
        limit: int | None = None,
    ) -> list[Job]:
        """Jobs, newest first, at most `limit` of them. What is empty does not matter; `owner` covers what it nests."""
        wanted = JobFilter(owner=owner, kind=kind, states=_states(states), label=label, parent=parent)
        client = await self._client()
        jobs: list[Job] = []
        token = ""
        while True:
            size = MAX_PAGE if limit is None else min(MAX_PAGE, limit - len(jobs))
            page = await client.list_jobs(wanted, page_size=max(1, size), page_token=token)
            jobs += page.jobs
            token = page.next_page_token
            if not token or (limit is not None and len(jobs) >= limit):
                return jobs[:limit]

    async def get(self, job_id: str) -> Job:
        """A job as it is."""
        return await (await self._client()).get_job(job_id)

    async def wait(self, job_id: str, *, timeout: float | None = None) -> Job:
        """The job once it is settled (C36), or as it is after `timeout` seconds."""
        client = await self._client()
        if timeout is not None:
            return await client.wait_job(job_id, timeout)
        while not (job := await client.wait_job(job_id, LONG_SECONDS)).state.is_settled:
            pass
        return job

    async def watch(
        self,
        cursor: str = "",
        *,
        owner: str = "",
        kind: str = "",
        states: Collection[JobState | str] = (),
        label: str = "",
        parent: str = "",
    ) -> AsyncGenerator[JobChanges, None]:
        """Jobs as they are after each change, from a cursor on or from now; each settlement once for a cursor (F23).

        Raises:
            OutOfRange: changes from that cursor on are not held any more.
        """
        wanted = JobFilter(owner=owner, kind=kind, states=_states(states), label=label, parent=parent)
        async for changes in (await self._client()).watch_jobs(cursor, wanted):
            yield changes

    async def read_output(
        self, job_id: str, source: str = "", *, offset: int = 0, follow: bool = False
    ) -> AsyncGenerator[OutputPiece, None]:
        """Output of a source, by default the first, from a byte on; with `follow` until the job is settled (C37)."""
        async for piece in (await self._client()).read_output(job_id, source, offset=offset, follow=follow):
            yield piece

    async def result(self, job_id: str) -> bytes:
        """A settled job's result (C37).

        Raises:
            FailedPrecondition: it is not settled, or has none.
        """
        return b"".join([part async for part in (await self._client()).read_result(job_id)])

    async def cancel(self, job_id: str, reason: str = "") -> Job:
        """Ask a job to stop; gives it as it then is. The first reason is kept (C38)."""
        return await (await self._client()).cancel_job(job_id, reason)

    async def delete(self, job_id: str) -> None:
        """Remove a settled job. Raises FailedPrecondition if it is not settled."""
        await (await self._client()).delete_job(job_id)

    async def _client(self) -> JobRegistryClient:
        """The connection, made when it is first needed: most programs ask for no jobs."""
        if self._connected is None:
            shown = client_settings().credentials if self._credentials is None else self._credentials
            client = JobRegistryClient(self.registry, reconnect_timeout=self._reconnect_timeout, credentials=shown)
            self._connected = await self._stack.enter_async_context(client)
        return self._connected


def _states(words: Collection[JobState | str]) -> tuple[JobState, ...]:
    try:
        return tuple(map(JobState, words))
    except ValueError:
        raise InvalidArgument.of_field("states", f"must be of {', '.join(JobState)}") from None
