"""The reading side of a call that tells a run's events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import grpc.aio

from fanfold.model.run import RunEvent, RunStepEvent
from fanfold.rpc.status import from_rpc_error
from fanfold.wire.ahead import PartsAhead
from fanfold.wire.parts import event_with_texts
from fanfold.wire.run import run_event_from_proto


class RunCall(Protocol):
    """A run's events while a call lasts."""

    async def read(self) -> Sequence[RunEvent]:
        """The next events, waiting for at least one; none at the end.

        A read that is cancelled loses nothing, and leaves the call as it is: the next one goes on.

        Raises:
            FanfoldError: as the coordinator answers.
        """
        ...

    async def close(self) -> None:
        """End the call, if it has not ended. An attached run ends with it."""
        ...


class EventCall:
    """Implements `RunCall` over a gRPC call whose responses have `events`."""

    def __init__(self, call: grpc.aio.UnaryStreamCall[Any, Any] | grpc.aio.StreamStreamCall[Any, Any], server: str):
        self._call = call
        self._server = server
        self._reading: asyncio.Task[Any] | None = None
        self._ahead = PartsAhead()

    async def read(self) -> Sequence[RunEvent]:
        """The next events. Raises FanfoldError as the coordinator answers."""
        while True:
            if self._reading is None:
                self._reading = asyncio.ensure_future(self._call.read())
            try:
                # gRPC takes a read that is cancelled for the wish to end the call.
                response = await asyncio.shield(self._reading)
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error, self._server) from None
            self._reading = None
            if response is grpc.aio.EOF:
                return []
            if response.HasField("part"):
                self._ahead.add(response.part)
            events = [event for told in response.events if (event := run_event_from_proto(told)) is not None]
            if events:
                return self._with_texts(events)

    def _with_texts(self, events: list[RunEvent]) -> list[RunEvent]:
        """The events, the first of them with the texts that came ahead of it."""
        first = events[0]
        if self._ahead and isinstance(first, RunStepEvent):
            events[0] = replace(first, event=event_with_texts(first.event, self._ahead.taken()))
        return events

    async def close(self) -> None:
        """End the call, if it has not ended."""
        self._call.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
