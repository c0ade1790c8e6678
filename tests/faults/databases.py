"""A PostgreSQL in which coordinators keep their runs, the ways to it, and what befalls them."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import psutil
from sqlalchemy.exc import OperationalError

from faults.subjects import Family, Kind, Subject
from support.postgres import SOCKET, Server, running_server
from support.proxy import Proxy, proxied

DATABASE = "postgres"

_Entered = TypeVar("_Entered")

_BETWEEN_ENDS = 0.1
_END_ONE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ~ '^fanfold' ORDER BY random() LIMIT 1
"""


class Database(Subject):
    """A server of PostgreSQL."""

    def __init__(self, server: Server) -> None:
        super().__init__("database")
        self._server = server

    def kinds(self) -> Mapping[str, Kind]:
        return {
            "restarted": Kind(Family.OUTAGE, self._restart),
            "frozen": Kind(Family.FREEZE, self._freeze),
            "connections ended": Kind(Family.CUT, self._end_connections),
        }

    async def _restart(self, seconds: float) -> None:
        """Have it crash, and recover when it is started again."""
        await asyncio.to_thread(self._server.stop)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self._server.start)

    async def _freeze(self, seconds: float) -> None:
        frozen = self._server.processes()
        try:
            _signal(frozen, signal.SIGSTOP)
            await asyncio.sleep(seconds)
        finally:
            _signal(frozen, signal.SIGCONT)

    async def _end_connections(self, seconds: float) -> None:
        """End connections of coordinators, whichever it happens to be, one after another."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with suppress(OperationalError):
                await asyncio.to_thread(self._server.execute, _END_ONE)
            await asyncio.sleep(_BETWEEN_ENDS)


class Way(Subject):
    """A service's own way to the database."""

    def __init__(self, service: str, proxy: Proxy) -> None:
        super().__init__(f"way of {service} to the database")
        self._proxy = proxy

    def kinds(self) -> Mapping[str, Kind]:
        return {"reset": Kind(Family.CUT, self._reset), "held up": Kind(Family.CUT, self._hold_up)}

    async def _reset(self, _seconds: float) -> None:
        self._proxy.cut()

    async def _hold_up(self, seconds: float) -> None:
        self._proxy.hold_up()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._proxy.heal()


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


@asynccontextmanager
async def _in_thread(block: AbstractContextManager[_Entered]) -> AsyncIterator[_Entered]:
    """The same block; what it does when it is entered and left keeps nothing else waiting."""
    entered = await asyncio.to_thread(block.__enter__)
    try:
        yield entered
    finally:
        await asyncio.to_thread(block.__exit__, None, None, None)


@asynccontextmanager
async def databases(services: Sequence[str]) -> AsyncIterator[tuple[list[Subject], dict[str, str]]]:
    """A database that is up with a way to it for each service; and its address, as each service reaches it."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(_in_thread(running_server()))  # other storms go on meanwhile
        subjects: list[Subject] = [Database(server)]
        urls = {}
        for service in services:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fanfold-way-", dir="/tmp")))
            proxy = await stack.enter_async_context(proxied(str(server.socket), at=str(folder / SOCKET)))
            subjects.append(Way(service, proxy))
            urls[service] = server.url(DATABASE, folder=folder)
        yield subjects, urls
