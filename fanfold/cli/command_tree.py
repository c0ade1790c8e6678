"""A command together with everything that it starts: watched, stopped, and gone in the end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Self

from executor_node.supervisor import linux

STOP_GRACE = 5.0
"""Seconds from SIGTERM to SIGKILL."""

_CHUNK_BYTES = 64 * 1024
_LOOK_SECONDS = 0.02

OnOutput = Callable[[str, bytes], None]
"""Takes what was written to "stdout" or "stderr"."""


class CommandTree:
    """A running command, in a session of its own. On Linux nothing that it starts gets away, as orphans become ours."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str]) -> Self:
        """Start a command. Raises OSError if it cannot be."""
        if sys.platform == "linux":
            linux.become_subreaper()
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        return cls(process)

    @property
    def pid(self) -> int:
        """The command's process id."""
        return self._process.pid

    async def run(self, on_output: OnOutput) -> int:
        """Wait until it has ended, and kill what it leaves behind; its exit code, negative for a signal's number.

        To be cancelled leaves it running.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_copy("stdout", self._process.stdout, on_output))
            tasks.create_task(_copy("stderr", self._process.stderr, on_output))
            code = await self._process.wait()
            await self.kill()
        return code

    async def stop(self) -> None:
        """Ask it to end, and kill it when it has not after a while; returns when nothing of it is left."""
        for pid in self._living():
            linux.send(pid, signal.SIGTERM)
        self._signal_group(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_GRACE):
                await self._process.wait()
        await self.kill()

    async def kill(self) -> None:
        """Kill all of it; returns when nothing is left."""
        while True:
            self._signal_group(signal.SIGKILL)
            living = self._living()
            for pid in living:
                linux.send(pid, signal.SIGKILL)
                if pid != self.pid:  # the command itself is waited for by asyncio
                    _reap(pid)
            if not living and self._process.returncode is not None:
                return
            await asyncio.sleep(_LOOK_SECONDS)

    def _living(self) -> list[int]:
        """Whatever is below this process, which starts nothing else."""
        return linux.descendants_of(os.getpid()) if sys.platform == "linux" else []

    def _signal_group(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)


def _reap(pid: int) -> None:
    """Have the kernel forget an orphan that has become ours, if it has ended."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


async def _copy(source: str, stream: asyncio.StreamReader | None, on_output: OnOutput) -> None:
    assert stream is not None
    while data := await stream.read(_CHUNK_BYTES):
        on_output(source, data)
