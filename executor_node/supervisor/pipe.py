"""The runtime's end of a pipe that a process writes to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

_READ_BYTES = 64 * 2**10
_MOST_PIECES = 16
"""What a pipe may hold at most, unless root has made it larger."""


class Pipe:
    """Gives what a process writes to `on_data`, in pieces, without ever blocking.

    `pause` seconds pass after each piece that filled the pipe, so that a process that floods it has to wait.
    """

    def __init__(self, on_data: Callable[[bytes], None], *, pause: float = 0.0) -> None:
        self._fd, self.writer = os.pipe()
        """The end for the process; whoever launches it takes it over."""
        os.set_blocking(self._fd, False)
        self._on_data = on_data
        self._pause = pause
        self._open = True
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._read)

    def drain(self) -> None:
        """Take what is still in the pipe, then close it; not what somebody goes on writing to it meanwhile."""
        for _ in range(_MOST_PIECES):
            if not self._open or not self._read():
                break
        self.close()

    def close(self) -> None:
        """Take no more; the process finds the pipe broken."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._fd)
            os.close(self._fd)

    def abandon(self) -> None:
        """Close both ends, because no process was launched with the other one."""
        self.close()
        os.close(self.writer)

    def _read(self) -> bool:
        """Read once. Returns whether there may be more."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        if self._pause and len(data) == _READ_BYTES:
            self._loop.remove_reader(self._fd)
            self._loop.call_later(self._pause, self._resume)
        self._on_data(data)
        return True

    def _resume(self) -> None:
        if self._open:
            self._loop.add_reader(self._fd, self._read)


class Tail:
    """Keeps the end of what was written."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._data = b""

    def add(self, data: bytes) -> None:
        """More was written."""
        self._data = (self._data + data)[-self._max_bytes :]

    def text(self, max_bytes: int) -> str:
        """The last of it as text, without blank lines around it."""
        return self._data[-max_bytes:].decode(errors="replace").strip()
