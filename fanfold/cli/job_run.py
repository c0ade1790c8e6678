"""`fanfold job run`: any command as a job, of which this process is the producer (C31, C32)."""

from __future__ import annotations

import asyncio
import shlex
import signal
import socket
import uuid
from collections.abc import Sequence
from contextlib import suppress

from fanfold.cli.command_tree import CommandTree
from fanfold.cli.connection import registry_reached
from fanfold.cli.interruption import run_interruptibly
from fanfold.cli.output import show_text, tell
from fanfold.clients.job_producer import GrpcJobProducer
from fanfold.clients.job_registry import JobRegistryClient
from fanfold.errors import Aborted, FailedPrecondition, FanfoldError, NotFound
from fanfold.model.job import JobSpec, JobState
from fanfold.ports import Production

SOURCES = ("stdout", "stderr")
MAX_LABEL = 128
STOPPED = 128 + signal.SIGTERM
"""Exit code for a command that somebody stopped, as shells have it."""

_ASK_SECONDS = 5.0


def job_run(registry: str | None, command: Sequence[str], *, kind: str, label: str, parent: str) -> int:
    """Run a command as a job until it has ended and the registry knows; the exit code for that.

    Raises:
        InvalidArgument: the kind or the like is wrong; nothing was started.
        Unavailable: the registry cannot be reached; nothing was started.
        FailedPrecondition: the command cannot be started.
        Interrupted: by a signal; the command is stopped, and its job is settled.
    """
    spec = JobSpec(kind=kind, label=label or shlex.join(command)[:MAX_LABEL], parent=parent, sources=SOURCES)
    return run_interruptibly(_Run(command, spec).carry_out(registry), lambda: tell("Stopping the command ..."))


class _Run:
    def __init__(self, command: Sequence[str], spec: JobSpec) -> None:
        self._command = command
        self._spec = spec
        self._tree: CommandTree | None = None

    async def carry_out(self, registry: str | None) -> int:
        async with (
            registry_reached(registry) as (address, credentials),
            GrpcJobProducer(address, credentials=credentials) as producer,
            JobRegistryClient(address, credentials=credentials) as client,
        ):
            try:
                request_id = f"cli-{uuid.uuid4().hex}"
                production = await producer.open_job(self._spec, request_id, epoch=1, start=self._start)
                show_text([production.job_id])
            except BaseException:
                await self._kill()
                raise
            return await self._produce(production, client)

    async def _start(self) -> str:
        try:
            self._tree = await CommandTree.start(self._command)
        except OSError as error:
            raise FailedPrecondition(f"{self._command[0]}: {error.strerror}", reason="NOT_STARTED") from None
        return f"process {self._tree.pid} on {socket.gethostname()}"

    async def _produce(self, production: Production, client: JobRegistryClient) -> int:
        assert self._tree is not None
        running = asyncio.create_task(self._tree.run(production.write))
        asked = asyncio.create_task(production.stop_asked())
        try:
            await asyncio.wait([running, asked], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                return await _settle(production, running.result())
            reason = asked.result()
            await self._tree.stop()
            return await _settle(production, await running, stopped=reason)
        except (NotFound, Aborted) as error:
            await self._tree.stop()
            await running
            tell(f"{production.job_id} is not this command's any more: {error.message}", "red")
            return 1
        except asyncio.CancelledError:
            await self._interrupted(production, client, running)
            raise
        finally:
            await self._kill()
            for task in (running, asked):
                task.cancel()
            await asyncio.wait([running, asked])

    async def _interrupted(self, production: Production, client: JobRegistryClient, running: asyncio.Task[int]) -> None:
        """Whoever sits at this terminal wants it stopped: the registry is told so, and then that it is."""
        assert self._tree is not None
        with suppress(FanfoldError, TimeoutError):
            async with asyncio.timeout(_ASK_SECONDS):
                await client.cancel_job(production.job_id, "interrupted at its terminal")
        await self._tree.stop()
        await _settle(production, await running, stopped="interrupted at its terminal")

    async def _kill(self) -> None:
        if self._tree is not None:
            await self._tree.kill()


async def _settle(production: Production, code: int, *, stopped: str | None = None) -> int:
    """Tell how the command ended, as long as it takes; the exit code for that."""
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    if stopped is not None:
        await production.settle(JobState.KILLED, how)
        return STOPPED
    await production.settle(JobState.FAILED if code else JobState.COMPLETED, how)
    return 128 - code if code < 0 else code
