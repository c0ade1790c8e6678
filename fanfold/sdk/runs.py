"""What can be asked about runs, and about the checkpoints of workflows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection

from fanfold.clients.coordinator import Bookmark, CoordinatorClient
from fanfold.clients.run_call import RunCall
from fanfold.errors import InvalidArgument
from fanfold.model.checkpoint import WorkflowCheckpoint
from fanfold.model.run import EventDetail, Run, RunEvent, RunState
from fanfold.model.validation import parse_line
from fanfold.sdk.servers import Servers
from fanfold.sdk.streams import RunStream

DISPOSE_SECONDS = 30.0
"""Seconds within which a run that is disposed of is to be gone."""

RECONNECT_TIMEOUT = 300.0
"""Seconds for which a mesh that was lost is looked for."""


class RunMethods:
    """The part of `Mesh` that is about runs as such, whoever has started them."""

    _servers: Servers
    _reconnect_timeout: float

    async def runs(
        self, *, workflow_id: str = "", states: Collection[RunState | str] = (), limit: int | None = None
    ) -> list[Run]:
        """The caller's runs, newest first: of one workflow, in one of some states, or all.

        Those of the past are kept for a time if they have a workflow id.
        """
        wanted = [_state_of(state) for state in states]

        async def ask(client: CoordinatorClient) -> list[Run]:
            return await client.list_runs(workflow_id=workflow_id, states=wanted, limit=limit)

        return await self._servers.ask(ask)

    async def run(self, run_id: str) -> Run:
        """A run as it is.

        Raises:
            NotFound: there is no such run.
        """
        return await self._servers.ask(lambda client: client.get_run(run_id))

    async def cancel(self, run_id: str, reason: str = "") -> Run:
        """Ask a run to stop; gives it as it then is. The first reason is kept.

        Raises:
            NotFound: there is no such run.
        """
        return await self._servers.ask(lambda client: client.cancel_run(run_id, reason))

    async def dispose(self, run_id: str, *, timeout: float = DISPOSE_SECONDS) -> Run:
        """Have a run gone: it is cancelled if it goes on, and waited for until nothing of it is left (C27).

        Gives the run as it ended. Idempotent.

        Raises:
            NotFound: there is no such run.
            DeadlineExceeded: something of it was still there after `timeout` seconds; says what.
        """
        return await self._servers.ask(lambda client: client.dispose_run(run_id, timeout))

    async def watch(
        self, run_id: str, *, from_sequence: int = 0, detail: EventDetail = EventDetail.PROGRESS
    ) -> AsyncGenerator[RunEvent, None]:
        """A run's events from a number on, each once, until it has ended; 0 means from the first that is kept (C28).

        A coordinator that is lost meanwhile is replaced by another one, as in `parallel_resumable`.

        Raises:
            NotFound: there is no such run.
            FailedPrecondition: its events are not kept, as it has no workflow id.
            OutOfRange: that event is not kept any more.
            Unavailable: no coordinator could be reached for `reconnect_timeout` seconds.
        """
        if from_sequence < 0:
            raise InvalidArgument.of_field("from_sequence", "must be the number of an event, or 0")

        def begin(client: CoordinatorClient, bookmark: Bookmark) -> RunCall:
            return client.watch_run(run_id, detail=detail, from_sequence=bookmark.sequence)

        stream = RunStream(
            self._servers,
            begin,
            detail,
            reconnect_timeout=self._reconnect_timeout,
            bookmark=Bookmark(run_id, from_sequence),
        )
        try:
            while events := await stream.read():
                for event in events:
                    yield event
        finally:
            await stream.close()

    async def checkpoint(self, workflow_id: str) -> WorkflowCheckpoint:
        """What is recorded of a workflow, to be resumed in another mesh (C7, C19).

        Raises:
            NotFound: nothing is recorded.
            FailedPrecondition: the mesh has no journal (C17).
        """
        asked = parse_line(workflow_id, path="workflow_id", required=True)
        return await self._servers.ask(lambda client: client.get_checkpoint(asked))

    async def put_checkpoint(self, checkpoint: WorkflowCheckpoint) -> int:
        """Have a checkpoint kept in place of what is recorded of its workflow; how many records it has.

        Raises:
            InvalidArgument: a record is wrong, or was changed; nothing was kept.
            Aborted: the workflow runs.
            FailedPrecondition: the mesh has no journal (C17), or does not know this version of checkpoints.
        """
        return await self._servers.ask(lambda client: client.put_checkpoint(checkpoint))


def _state_of(word: RunState | str) -> RunState:
    try:
        return RunState(word)
    except ValueError:
        raise InvalidArgument.of_field("states", f"must be of {', '.join(RunState)}") from None
