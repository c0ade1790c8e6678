"""One program while it runs, until nothing of it is left."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol

from executor_node.agents.command.readers import Reader
from executor_node.secrets import NO_SECRETS, Secrets
from executor_node.supervisor.client import ProcessTree, Supervision, describe_exit
from executor_node.supervisor.pipe import Pipe, Tail
from executor_node.supervisor.protocol import Launch, write_memory_file
from executor_node.told import Result
from fanfold.model.step import FailureCode, StepFailure

_TAIL_BYTES = 2048
_PAUSE_SECONDS = 0.01


class FailureOfExit(Protocol):
    """Says what a program's exit stands for."""

    def __call__(self, message: str, *, is_crash: bool) -> StepFailure:
        """The failure for a message about an exit code, or about a signal that crashed it."""
        ...


def _plain_failure(message: str, *, is_crash: bool) -> StepFailure:
    return StepFailure(code=FailureCode.CRASHED if is_crash else FailureCode.AGENT_FAILED, message=message)


class Program:
    """A program and all that it starts.

    Args:
        supervision: what launches it.
        reader: what reads its standard output.
        grace: seconds between SIGTERM and SIGKILL.
        failure_of_exit: what its exit stands for if its reader knows of no failure.
        secrets: what is not told of its standard error.
    """

    def __init__(
        self,
        supervision: Supervision,
        reader: Reader,
        *,
        grace: float,
        failure_of_exit: FailureOfExit = _plain_failure,
        secrets: Secrets = NO_SECRETS,
    ) -> None:
        self._supervision = supervision
        self._reader = reader
        self._grace = grace
        self._failure_of_exit = failure_of_exit
        self._secrets = secrets
        self._errors = Tail(_TAIL_BYTES)
        self._ended: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self._tree: ProcessTree | None = None
        self.wrote_too_much = False
        """Whether it was stopped because its reader takes no more."""

    @property
    def errors(self) -> str:
        """The end of what it wrote to its standard error."""
        return self._secrets.blotted(self._errors.text(_TAIL_BYTES))

    async def run(self, launch: Launch, standard_input: bytes | None) -> Result:
        """Launch it, and wait until nothing of it is left. When this is cancelled, it is stopped first.

        Raises:
            OSError: this process is out of file descriptors or memory.
        """
        self._start(launch, standard_input)
        try:
            code, why = await asyncio.shield(self._ended)
        except asyncio.CancelledError:
            self.stop()
            await self._ended
            raise
        finally:
            self._stdout.drain()
            self._stderr.drain()
        result = self._reader.result()
        if (code != 0 or why) and (result.failure is None or code < 0):
            result = replace(result, failure=self._failure(code, why))
        return result

    def stop(self) -> None:
        """Stop all its processes."""
        if self._tree is not None and not self._ended.done():
            self._tree.stop(self._grace)

    def _start(self, launch: Launch, standard_input: bytes | None) -> None:
        with ExitStack() as undo:
            self._stdout = Pipe(self._take)
            undo.callback(self._stdout.abandon)
            self._stderr = Pipe(self._errors.add, pause=_PAUSE_SECONDS)
            undo.callback(self._stderr.abandon)
            fds = {1: self._stdout.writer, 2: self._stderr.writer}
            if standard_input is not None:
                fds[0] = write_memory_file(standard_input, "prompt")
                undo.callback(os.close, fds[0])
            self._tree = self._supervision.launch(launch, fds, self._end)
            undo.pop_all()

    def _take(self, data: bytes) -> None:
        if not self._reader.add(data) and not self.wrote_too_much:
            self.wrote_too_much = True
            self._stdout.close()
            self.stop()

    def _end(self, code: int, why: str) -> None:
        if not self._ended.done():  # or who waits for it was cancelled twice
            self._ended.set_result((code, why))

    def _failure(self, code: int, why: str) -> StepFailure:
        if why:
            return StepFailure(code=FailureCode.CRASHED, message=why, retryable=True)
        message = f"{describe_exit(code)}: {self.errors}" if self.errors else describe_exit(code)
        return self._failure_of_exit(message, is_crash=code < 0)
