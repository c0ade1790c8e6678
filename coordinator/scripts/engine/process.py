"""The coordinator's end of one script's process."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress

from coordinator.scripts.engine.engine import EngineFailed
from coordinator.scripts.engine.frames import Frame, FrameDecoder, FrameError, encode

READ_BYTES = 256 * 1024
LOOK_SECONDS = 0.01
"""Between two looks for the end of a process, where there are no descriptors of processes."""


class QuickJsProcess:
    """Implements `ScriptProcess`. `pidfd` is a descriptor of the process; -1 where there are none."""

    def __init__(self, channel: socket.socket, pid: int, pidfd: int) -> None:
        self._channel = channel
        self._pid = pid
        self._pidfd = pidfd
        self._decoder = FrameDecoder()
        self._writing = asyncio.Lock()
        self._is_closed = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._pid

    async def receive(self) -> Sequence[Frame]:
        """What it says next; nothing at its end."""
        while True:
            try:
                data = await asyncio.get_running_loop().sock_recv(self._channel, READ_BYTES)
                frames = self._decoder.feed(data)
            except FrameError as error:
                raise EngineFailed(f"the script's process wrote what is no frame: {error}") from None
            except OSError:
                return ()
            if frames or not data:
                return frames

    async def deliver(self, frame: Frame) -> None:
        """Say something to it."""
        data = encode(frame)
        async with self._writing:
            with suppress(OSError):  # it has ended, as whoever receives is told
                await asyncio.get_running_loop().sock_sendall(self._channel, data)

    def kill(self) -> None:
        """End it."""
        if self._is_closed:
            return
        with suppress(ProcessLookupError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            else:
                os.kill(self._pid, signal.SIGKILL)

    def has_ended(self) -> bool:
        """Whether it is known to be gone."""
        if self._pidfd < 0:
            return False
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    async def closed(self) -> None:
        """Wait until it is gone, and close what belongs to it."""
        if self._is_closed:
            return
        await (readable(self._pidfd) if self._pidfd >= 0 else self._vanished())
        if not self._is_closed:
            self._is_closed = True
            self._channel.close()
            if self._pidfd >= 0:
                os.close(self._pidfd)

    async def _vanished(self) -> None:
        with suppress(ProcessLookupError):
            while True:
                os.kill(self._pid, 0)
                await asyncio.sleep(LOOK_SECONDS)


async def readable(descriptor: int) -> None:
    """Wait until a descriptor can be read."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def tell() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(descriptor, tell)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
