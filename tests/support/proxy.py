"""A proxy between a service and what it calls, which a test can cut, hold up and heal."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress


class Proxy:
    """Passes bytes on to a target, host:port or the path of a socket, as long as the test lets it.

    With several targets each connection is to the next one that takes it. It listens at the path `at`, or without one
    on a free port of loopback.
    """

    def __init__(self, *targets: str, at: str = "") -> None:
        self.retarget(*targets)
        self._at = at
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._until: tuple[int, Callable[[], None]] | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        assert self._server is not None
        if self._at:
            return self._at
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def retarget(self, *targets: str) -> None:
        """Take new connections elsewhere: what is behind it was started again."""
        self._targets = deque(targets)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for _ in range(len(self._targets) - 1):
            with suppress(OSError):
                return await self._next_connected()
        return await self._next_connected()

    async def _next_connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        target = self._targets[0]
        self._targets.rotate(-1)
        if target.startswith("/"):
            return await asyncio.open_unix_connection(target)
        host, _, port = target.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    def hold_up(self) -> None:
        """Pass nothing on, and tell nobody: what a partition looks like."""
        self._open.clear()

    def heal(self) -> None:
        """Pass on again, also what has gathered."""
        self._open.set()

    def cut_after(self, size: int) -> None:
        """Break all connections when so many further bytes have passed, in whatever direction."""
        self._until = size, self.cut

    def hold_up_after(self, size: int) -> None:
        """Hold up when so many further bytes have passed."""
        self._until = size, self.hold_up

    def has_happened(self) -> bool:
        """Whether what was to happen after some bytes has happened."""
        return self._until is None

    def cut(self) -> None:
        """Break all connections; new ones are taken."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._open.wait()
            back, forth = await self._connected()
        except OSError:
            self._close(writer)  # nobody is there
            return
        self._writers.add(forth)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pass_on(reader, forth))
            tasks.create_task(self._pass_on(back, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
                self._count(len(data))
        except OSError:
            pass
        finally:
            self._close(writer)

    def _count(self, size: int) -> None:
        if self._until is not None:
            left, act = self._until
            self._until = (left - size, act) if left > size else None
            if self._until is None:
                act()

    def _close(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.close()

    async def start(self) -> None:
        """Listen."""

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._serve(reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        if self._at:
            self._server = await asyncio.start_unix_server(connected, self._at)
        else:
            self._server = await asyncio.start_server(connected, "127.0.0.1", 0)

    async def stop(self) -> None:
        """Break everything."""
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def proxied(*targets: str, at: str = "") -> AsyncIterator[Proxy]:
    """A proxy to these targets while the block lasts."""
    proxy = Proxy(*targets, at=at)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
