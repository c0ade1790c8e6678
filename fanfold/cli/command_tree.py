"""A command together with everything that it starts: watched, stopped, and gone in the end, whatever becomes of us."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass

from executor_node.supervisor.client import ProcessTree, Supervision, describe_exit
from executor_node.supervisor.protocol import Launch
from fanfold.errors import FailedPrecondition
from fanfold.settings import child_environment

STOP_GRACE = 5.0
"""Seconds from SIGTERM to SIGKILL."""

_SUSPENDED_SECONDS = 7 * 86_400.0
"""How long this process, or the machine, may be suspended before the command is taken for abandoned."""

_CHUNK_BYTES = 64 * 1024

OnOutput = Callable[[str, bytes], None]
"""Takes what was written to "stdout" or "stderr"."""


@asynccontextmanager
async def supervised() -> AsyncIterator[Supervision]:
    """What runs commands while the block lasts, and kills what is left of them when it or this process ends."""
    supervision = Supervision.spawn(child_environment())
    supervision.silence_limit = _SUSPENDED_SECONDS
    async with supervision:
        yield supervision


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended: its exit code, negative for a signal's number, and that in words."""

    code: int
    words: str


class CommandTree:
    """A command that runs, and all that it starts: daemons, and what has called setsid, too.

    Raises (on making one):
        FailedPrecondition: there is no such command.
    """

    def __init__(self, supervision: Supervision, command: Sequence[str], environment: Mapping[str, str]) -> None:
        if shutil.which(command[0], path=environment.get("PATH")) is None:
            raise FailedPrecondition(f"{command[0]}: there is no such command", reason="NOT_STARTED")
        self._ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        stdout, stderr = os.pipe(), os.pipe()
        self._outputs = {"stdout": stdout[0], "stderr": stderr[0]}
        launch = Launch(argv=command, environment=environment, directory=os.getcwd())
        self._tree: ProcessTree = supervision.launch(launch, {1: stdout[1], 2: stderr[1]}, self._end)

    def _end(self, code: int, why: str) -> None:
        self._ended.set_result(Exit(code, why or describe_exit(code)))

    async def run(self, on_output: OnOutput) -> Exit:
        """Wait until it has ended and nothing of it is left, and give what it writes to `on_output` meanwhile."""
        async with asyncio.TaskGroup() as tasks:
            for name, fd in self._outputs.items():
                tasks.create_task(_copy(name, fd, on_output))
        return await self._ended

    async def stop(self) -> None:
        """Ask all of it to end, and kill what has not after a while; returns when nothing of it is left."""
        self._tree.stop(STOP_GRACE)
        await asyncio.wait([self._ended])

    async def kill(self) -> None:
        """Kill all of it; returns when nothing is left."""
        self._tree.kill()
        await asyncio.wait([self._ended])


async def _copy(source: str, fd: int, on_output: OnOutput) -> None:
    reader = asyncio.StreamReader()
    pipe = os.fdopen(fd, "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    with closing(transport):
        while data := await reader.read(_CHUNK_BYTES):
            on_output(source, data)
