"""A service of an embedded mesh, as the process that it is."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from fanfold.cli.serve import CLI
from fanfold.errors import FailedPrecondition

_TAIL_BYTES = 16 * 1024
_CHUNK_BYTES = 64 * 1024


class Child:
    """A service in a process of its own, which drains when we are gone, however we went.

    `address` and `metrics` tell where it is once it is ready; what it has to say is in the file `log`.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.log = log
        self.address = ""
        self.metrics = ""
        self.ended = asyncio.create_task(process.wait())
        """Done with its exit code when it has ended."""
        self._process = process
        self._copying: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, name: str, arguments: Sequence[str], *, log: Path) -> Self:
        """Start `fanfold serve` with `arguments`; what it has to say is added to its log."""
        with log.open("ab") as stderr:
            process = await asyncio.create_subprocess_exec(
                *CLI,
                "serve",
                *arguments,
                "--print-ready",
                stdin=asyncio.subprocess.PIPE,  # its end tells the service that we are gone
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # a terminal's Ctrl-C is our affair
            )
        return cls(name, process, log)

    async def wait_until_ready(self) -> None:
        """Return when it serves. Raises FailedPrecondition, with the end of its log, when it never will."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            await self.ended
            raise FailedPrecondition(self.obituary())
        ready = json.loads(line)
        self.address, self.metrics = ready["address"], ready["metrics"]
        self._copying = asyncio.create_task(self._copy(self._process.stdout))

    def end(self) -> str:
        """How it ended, in words that begin with its name."""
        code = self._process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
        return f"{self.name} {how}"

    def obituary(self) -> str:
        """How it ended, and the last lines of its log."""
        lines = [f"  {line}" for line in self._tail()]
        return "\n".join([f"{self.end()}; the end of {self.log}:", *(lines or ["  (nothing)"])])

    async def wait_until_gone(self, within: float) -> None:
        """Wait until no process of it is left that was one of the service's own; at most `within` seconds."""
        await asyncio.wait([self.ended, *([self._copying] if self._copying else [])], timeout=within)

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self, within: float) -> None:
        """Ask it to drain, and wait until it has ended; after `within` seconds it is killed."""
        self.send_signal(signal.SIGTERM)
        await asyncio.wait([self.ended], timeout=within)
        await self.kill()

    async def kill(self) -> None:
        """Kill it, and wait until it has ended."""
        self.send_signal(signal.SIGKILL)
        await asyncio.wait([self.ended])
        if self._copying is not None:
            self._copying.cancel()

    async def _copy(self, stdout: asyncio.StreamReader) -> None:
        """Keep whatever else it prints, so that it never waits for us to read it."""
        with self.log.open("ab") as log:
            while data := await stdout.read(_CHUNK_BYTES):
                log.write(data)
                log.flush()

    def _tail(self, lines: int = 20) -> list[str]:
        with self.log.open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL_BYTES))
            return log.read().decode(errors="replace").splitlines()[-lines:]
