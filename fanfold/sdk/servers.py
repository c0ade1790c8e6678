"""The coordinators of one mesh: one of them is asked, until it cannot be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from fanfold.backoff import Absence, full_jitter
from fanfold.clients.coordinator import CoordinatorClient
from fanfold.errors import DRAINING, NO_CONNECTION, FanfoldError, InvalidArgument, Unavailable
from fanfold.rpc.addresses import parse_addresses
from fanfold.rpc.credentials import Credentials, Tls
from fanfold.settings import client_settings

FIRST_PAUSE = 0.2
MOST_PAUSE = 1.0
"""Seconds: bounds of the ceiling below which each pause before another attempt is random.

A journaled run begins nothing while its caller is away, and does not wait for it for ever.
"""

UPDATE_SECONDS = 10.0
"""How long servers are asked again of which some are about to stop: longer than gRPC waits before it connects anew."""

Answer = TypeVar("Answer")


class Servers:
    """Connections to coordinators, to be entered. `addresses` have commas between them, or are a sequence.

    Without any, those of the environment are taken.
    """

    def __init__(self, addresses: str | Sequence[str] | None, credentials: Credentials) -> None:
        given = addresses if isinstance(addresses, str) else ",".join(addresses or ())
        found = parse_addresses(given, field="server") if given else client_settings().servers
        self._clients = [CoordinatorClient(address, credentials) for address in found]
        self._at = 0
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for client in self._clients:
            await self._stack.enter_async_context(client)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def current(self) -> CoordinatorClient:
        """The one that is asked."""
        return self._clients[self._at]

    def leave(self, client: CoordinatorClient) -> None:
        """Ask the next one from now on, unless somebody else has left this one before."""
        if client is self.current:
            self._at = (self._at + 1) % len(self._clients)

    async def ask(
        self, question: Callable[[CoordinatorClient], Awaitable[Answer]], *, repeatable: bool = True
    ) -> Answer:
        """The answer to a question, of the first one that is there to give it.

        Where the question is not `repeatable`, one that may have heard it is the last that is asked. When one says that
        it is about to stop, the others may be about to start, as in an update, and are asked again for a while.

        Raises:
            Unavailable: none is there.
        """
        patience, asked, is_update = Patience(self, UPDATE_SECONDS), 0, False
        while True:
            client = self.current
            try:
                return await question(client)
            except Unavailable as error:
                asked += 1
                is_update |= error.reason == DRAINING
                if not repeatable and error.reason != NO_CONNECTION:
                    self.leave(client)
                    raise
                if asked >= len(self) and not is_update:
                    raise
                if asked < len(self):
                    self.leave(client)
                else:
                    await patience.leave(client, error)


class Patience:
    """Tries coordinators again that were lost, for so many seconds since the last word of any."""

    def __init__(self, servers: Servers, seconds: float) -> None:
        self._servers = servers
        self._absence = Absence(seconds)

    def restored(self) -> None:
        """One of them has answered."""
        self._absence.end()

    async def leave(self, client: CoordinatorClient, error: FanfoldError) -> None:
        """Turn to the next one, after a pause. Raises `error` when there has been none for too long."""
        left = self._absence.seconds_left(error)
        self._servers.leave(client)
        failures = self._absence.failures
        pause = full_jitter(failures, first=FIRST_PAUSE, most=MOST_PAUSE)
        if failures % len(self._servers) == 0:  # the next one is one that has asked for time
            pause += error.retry_delay or 0.0
        await asyncio.sleep(min(pause, left))


def credentials_of(
    token: str | None = None, *, token_file: Path | None = None, tls: Tls | bool | None = None
) -> Credentials:
    """The credentials that are given; those of the environment where none are."""
    found = client_settings().credentials
    if token is not None or token_file is not None:
        found = replace(found, token=token or "", token_file=token_file)
    if tls is not None:
        found = replace(found, tls=(Tls() if tls else None) if isinstance(tls, bool) else tls)
    return found


def seconds_of(timeout: float) -> float:
    """A `reconnect_timeout`. Raises InvalidArgument unless it is a number of seconds, 0 or more."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidArgument.of_field("reconnect_timeout", "must be a number of seconds, 0 or more")
    return timeout
