"""A run's events over as many calls as it takes (C19, C43)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from fanfold.clients.coordinator import BEGINNING, Bookmark, CoordinatorClient
from fanfold.clients.run_call import RunCall
from fanfold.errors import DRAINING, NO_CONNECTION, FanfoldError, NotFound, Unavailable, is_interruption
from fanfold.model.run import EventDetail, RunEvent, RunStarted
from fanfold.rpc.status import NOT_GRPC
from fanfold.sdk.servers import UPDATE_SECONDS, Patience, Servers

LASTING_SECONDS = 60.0
"""A call that told nothing for so long before it was lost was with a coordinator that had nothing to tell. Those that
look for a run's holder give up sooner."""

CANCELLED_BY_CALLER = "its caller cancelled it"


Begin = Callable[[CoordinatorClient, Bookmark], RunCall]
"""Begins a call that tells a run's events from a bookmark on."""


class RunStream:
    """Tells every event once, whatever happens to coordinators meanwhile.

    `reconnect_timeout` is in seconds. With 0 nothing is tried again once the run has begun, as for attached runs, which
    end with their call; before that other servers are tried all the same, in an update for UPDATE_SECONDS.
    """

    def __init__(
        self,
        servers: Servers,
        begin: Begin,
        detail: EventDetail,
        *,
        reconnect_timeout: float,
        bookmark: Bookmark = BEGINNING,
    ) -> None:
        self._servers = servers
        self._begin = begin
        self._detail = detail
        self._timeout = reconnect_timeout
        self._patience = Patience(servers, reconnect_timeout)
        self._update = Patience(servers, UPDATE_SECONDS)
        self._client = servers.current
        self._call: RunCall | None = None
        self._opened_at = 0.0
        self._bookmark = bookmark
        self._was_reached = False
        self._refusals = 0
        self._is_update = False
        self._is_stopping = False
        self.trouble = ""
        """Why nothing comes at the moment, in words; empty when a coordinator is there."""

    @property
    def run_id(self) -> str:
        """The run's id, once it is known."""
        return self._bookmark.run_id

    @property
    def has_begun(self) -> bool:
        """Whether a coordinator may have been given the run."""
        return self._call is not None or self._was_reached

    async def read(self) -> Sequence[RunEvent]:
        """The next events; none at the end. A read that is cancelled loses nothing: the next one goes on.

        Raises:
            Unavailable: no coordinator can be reached, or none has been for too long.
            FanfoldError: as the coordinator answers.
        """
        while True:
            if self._call is None:
                self._call = self._open()
            try:
                events = await self._call.read()
            except FanfoldError as error:
                await self._lost(error)
            else:
                self._heard(events)
                return events

    async def stop(self, reason: str = CANCELLED_BY_CALLER) -> None:
        """Ask for the run to be cancelled; what comes of it can be read on. Its id must be known."""
        self._is_stopping = True
        client, patience = self._client, Patience(self._servers, self._timeout)
        with suppress(NotFound):  # it has ended, and what is left of it is its last events
            while True:
                try:
                    await client.cancel_run(self.run_id, reason)
                except Unavailable as error:
                    await patience.leave(client, error)
                    client = self._servers.current
                else:
                    return

    async def close(self) -> None:
        """End the call, and with it an attached run that has not ended."""
        if self._call is not None:
            await self._call.close()
            self._call = None

    def _open(self) -> RunCall:
        self._client, self._opened_at = self._servers.current, time.monotonic()
        if self._is_stopping:  # to ask for a run that was cancelled is to ask for it to be resumed
            return self._client.watch_run(self.run_id, detail=self._detail, from_sequence=self._bookmark.sequence)
        return self._begin(self._client, self._bookmark)

    def _heard(self, events: Sequence[RunEvent]) -> None:
        self._patience.restored()
        self._was_reached = True
        self.trouble = ""
        run_id = next((event.run_id for event in events if isinstance(event, RunStarted)), self.run_id)
        numbered = next((event.sequence for event in reversed(events) if event.sequence), None)
        if numbered is not None:
            self._bookmark = Bookmark(run_id, numbered + 1)

    async def _lost(self, error: FanfoldError) -> None:
        """Go on elsewhere. Raises `error` if that cannot be, or should not."""
        if not is_interruption(error):
            raise error
        await self.close()
        if not self._was_reached:
            nothing_was_sent = error.reason in {NO_CONNECTION, NOT_GRPC}
            self._is_update |= error.reason == DRAINING  # others may be there soon that are not at the moment
            if (nothing_was_sent or error.reason == DRAINING) and self._refusals < len(self._servers) - 1:
                self._refusals += 1
                self._servers.leave(self._client)
                return
            if nothing_was_sent and not self._is_update:
                raise error
            if (nothing_was_sent or error.reason == DRAINING) and not self._timeout:
                self.trouble = f"a coordinator ({error.message})"
                await self._update.leave(self._client, error)
                return
            self._was_reached = True
        elif time.monotonic() - self._opened_at > LASTING_SECONDS and error.reason != NO_CONNECTION:
            self._patience.restored()
        self.trouble = f"a coordinator ({error.message})"
        await self._patience.leave(self._client, error)
