"""The parent's end of one worker process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from fanfold.schema.frames import LENGTH, frame
from fanfold.schema.limits import SchemaLimits

_START_SECONDS = 30.0
_SLICES = 4
# The environment is empty and -I ignores what may lie about, so the search path goes along as an argument.
_PROGRAM = """
import sys, json
sys.path[:] = json.loads(sys.argv[1])
from fanfold.schema.worker import main
main(*sys.argv[2:])
"""


class WorkerDied(Exception):
    """The worker process ended before it answered."""


class WorkerProcess:
    """A running worker. It takes one request at a time; after any exception it must be killed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._requests = process.stdin
        self._answers = process.stdout

    @classmethod
    async def start(cls, limits: SchemaLimits) -> WorkerProcess:
        """A worker that is ready for requests. It dies with the thread that runs this loop.

        Raises:
            OSError: the system starts no process now.
            WorkerDied: it ended at once; its standard error, which is this process's own, says why.
            TimeoutError: it was not ready in time.
        """
        path = [os.path.abspath(entry) for entry in sys.path]
        arguments = [json.dumps(path), str(os.getpid()), json.dumps(asdict(limits))]
        # A session of its own keeps the terminal's interrupts away: the parent says when to end.
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-I", "-c", _PROGRAM, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={},
            cwd="/",
            start_new_session=True,
        )
        worker = cls(process)
        try:
            await _within(_START_SECONDS, worker._read_answer())
        except BaseException:
            await worker.kill()
            raise
        return worker

    async def ask(self, schema: bytes, value: bytes, *, seconds: float) -> str | None:
        """Give one request and wait for its answer: what is wrong, or None.

        Raises:
            TimeoutError: there was none within `seconds`.
            WorkerDied: the process ended.
        """
        return await _within(seconds, self._exchange(frame(schema) + frame(value)))

    async def kill(self) -> None:
        """End the process and reap it."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._requests.close()
        await self._process.wait()

    async def _exchange(self, request: bytes) -> str | None:
        try:
            self._requests.write(request)
            await self._requests.drain()
        except ConnectionError:
            raise WorkerDied from None
        return await self._read_answer()

    async def _read_answer(self) -> str | None:
        try:
            (length,) = LENGTH.unpack(await self._answers.readexactly(LENGTH.size))
            answer: str | None = json.loads(await self._answers.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            raise WorkerDied from None
        return answer


async def _within(seconds: float, answer: Coroutine[Any, Any, str | None]) -> str | None:
    """Like `asyncio.wait_for`, but a pause of this whole process uses up one slice of the time, not all of it."""
    task = asyncio.create_task(answer)
    try:
        for _ in range(_SLICES):
            done, _ = await asyncio.wait({task}, timeout=seconds / _SLICES)
            if done:
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, WorkerDied):
            await task
