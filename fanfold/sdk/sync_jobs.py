"""Jobs and started runs from ordinary code: the methods of `Jobs` and `StartedRun`, which block."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from fanfold.model.job import Job, JobChanges, JobState, OutputPiece
from fanfold.model.run import EventDetail, ParallelResult, Run, RunEvent
from fanfold.model.script import ScriptResult
from fanfold.sdk.jobs import Jobs
from fanfold.sdk.runs import DISPOSE_SECONDS
from fanfold.sdk.started import Started, StartedRun, StartedWorkflow

Result = TypeVar("Result")
Item = TypeVar("Item")


class Wait(Protocol):
    """Waits for what a coroutine gives, which runs elsewhere."""

    def __call__(self, work: Coroutine[Any, Any, Result], /) -> Result:
        """Wait for it. Raises MeshClosed if that will not come any more."""
        ...


class MeshClosed(RuntimeError):
    """The `with` block of the mesh has been left."""


def stepped(wait: Wait, items: AsyncGenerator[Item, None]) -> Iterator[Item]:
    """What an asynchronous iterator gives; it is closed when nobody wants more of it."""

    async def following() -> list[Item]:
        async for item in items:
            return [item]
        return []

    try:
        while found := wait(following()):
            yield found[0]
    finally:
        with suppress(MeshClosed):
            wait(items.aclose())


class SyncJobs:
    """As `Jobs`, with methods that block: `mesh.jobs` of a `SyncMesh`."""

    def __init__(self, jobs: Jobs, wait: Wait) -> None:
        self._jobs = jobs
        self._wait = wait

    def list(
        self,
        *,
        owner: str = "",
        kind: str = "",
        states: Collection[JobState | str] = (),
        label: str = "",
        parent: str = "",
        limit: int | None = None,
    ) -> list[Job]:
        """Jobs, newest first."""
        return self._wait(
            self._jobs.list(owner=owner, kind=kind, states=states, label=label, parent=parent, limit=limit)
        )

    def get(self, job_id: str) -> Job:
        """A job as it is."""
        return self._wait(self._jobs.get(job_id))

    def wait(self, job_id: str, *, timeout: float | None = None) -> Job:
        """The job once it is settled, or as it is after `timeout` seconds."""
        return self._wait(self._jobs.wait(job_id, timeout=timeout))

    def watch(
        self,
        cursor: str = "",
        *,
        owner: str = "",
        kind: str = "",
        states: Collection[JobState | str] = (),
        label: str = "",
        parent: str = "",
    ) -> Iterator[JobChanges]:
        """Jobs as they are after each change. Raises as `Jobs.watch`."""
        changes = self._jobs.watch(cursor, owner=owner, kind=kind, states=states, label=label, parent=parent)
        return stepped(self._wait, changes)

    def read_output(
        self, job_id: str, source: str = "", *, offset: int = 0, follow: bool = False
    ) -> Iterator[OutputPiece]:
        """Output of a source from a byte on."""
        return stepped(self._wait, self._jobs.read_output(job_id, source, offset=offset, follow=follow))

    def result(self, job_id: str) -> bytes:
        """A settled job's result. Raises as `Jobs.result`."""
        return self._wait(self._jobs.result(job_id))

    def cancel(self, job_id: str, reason: str = "") -> Job:
        """Ask a job to stop."""
        return self._wait(self._jobs.cancel(job_id, reason))

    def delete(self, job_id: str) -> None:
        """Remove a settled job. Raises as `Jobs.delete`."""
        self._wait(self._jobs.delete(job_id))


class SyncStarted:
    """As `Started`, with methods that block."""

    def __init__(self, run: Started, wait: Wait) -> None:
        self._run = run
        self._wait = wait
        self.id = run.id
        self.run_id = run.run_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id}, {self.run_id})"

    def get(self) -> Run:
        """The run as it is."""
        return self._wait(self._run.get())

    def wait(self, *, timeout: float | None = None) -> Run:
        """The run once it has ended, or as it is after `timeout` seconds."""
        return self._wait(self._run.wait(timeout=timeout))

    def events(self, *, from_sequence: int = 0, detail: EventDetail = EventDetail.PROGRESS) -> Iterator[RunEvent]:
        """Its events, until it has ended. Raises as `Mesh.watch`."""
        return stepped(self._wait, self._run.events(from_sequence=from_sequence, detail=detail))

    def cancel(self, reason: str = "") -> Run:
        """Ask it to stop."""
        return self._wait(self._run.cancel(reason))

    def dispose(self, *, timeout: float = DISPOSE_SECONDS) -> Run:
        """Have it gone. Raises as `Mesh.dispose`."""
        return self._wait(self._run.dispose(timeout=timeout))


class SyncStartedRun(SyncStarted):
    """As `StartedRun`, with methods that block."""

    def __init__(self, run: StartedRun, wait: Wait) -> None:
        super().__init__(run, wait)
        self._result = run.result

    def result(self) -> ParallelResult:
        """Its outcomes, once it has ended. Raises as `StartedRun.result`."""
        return self._wait(self._result())


class SyncStartedWorkflow(SyncStarted):
    """As `StartedWorkflow`, with methods that block."""

    def __init__(self, run: StartedWorkflow, wait: Wait) -> None:
        super().__init__(run, wait)
        self._result = run.result

    def result(self) -> ScriptResult:
        """What came of it, once it has ended. Raises as `StartedWorkflow.result`."""
        return self._wait(self._result())
