"""`fanfold job run`: any command as a job, of which this process is the producer (C31, C32)."""

from __future__ import annotations

import asyncio
import signal
import socket
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fanfold.cli import exits
from fanfold.cli.command_tree import CommandTree, Exit, supervised
from fanfold.cli.connection import registry_reached
from fanfold.cli.interruption import run_interruptibly
from fanfold.cli.output import show_text, tell
from fanfold.clients.job_producer import GrpcJobProducer
from fanfold.clients.job_registry import JobRegistryClient
from fanfold.clients.production import GrpcProduction
from fanfold.errors import Aborted, FanfoldError, NotFound
from fanfold.model.job import JobSpec, JobState
from fanfold.ports import Production
from fanfold.settings import command_environment

SOURCES = ("stdout", "stderr")
MAX_LABEL = 128
STOPPED = exits.SIGNALLED + signal.SIGTERM
"""Exit code for a command that somebody stopped, as shells have it."""

INTERRUPTED = "interrupted at its terminal"

_ASK_SECONDS = 5.0


def job_run(registry: str | None, command: Sequence[str], *, kind: str, label: str, parent: str) -> int:
    """Run a command as a job until it has ended and the registry knows; the exit code for that.

    Raises:
        InvalidArgument: the kind or the like is wrong; nothing was started.
        Unavailable: the registry cannot be reached; nothing was started.
        FailedPrecondition: the command cannot be started.
        Interrupted: by a signal; the command is stopped, and its job is settled.
    """
    spec = JobSpec(kind=kind, label=label or Path(command[0]).name[:MAX_LABEL], parent=parent, sources=SOURCES)
    return run_interruptibly(_Run(command, spec).carry_out(registry), lambda: tell("Stopping the command ..."))


class _Run:
    def __init__(self, command: Sequence[str], spec: JobSpec) -> None:
        self._command = command
        self._spec = spec

    async def carry_out(self, registry: str | None) -> int:
        async with (
            supervised() as supervision,
            registry_reached(registry) as (address, credentials),
            GrpcJobProducer(address, credentials=credentials) as producer,
            JobRegistryClient(address, credentials=credentials) as client,
        ):
            trees: list[CommandTree] = []

            async def start() -> str:
                trees.append(CommandTree(supervision, self._command, command_environment()))
                return f"what process {supervision.supervisor_pid} on {socket.gethostname()} has started"

            request_id = f"cli-{uuid.uuid4().hex}"
            opening = asyncio.create_task(producer.open_job(self._spec, request_id, epoch=1, start=start))
            try:
                production = await asyncio.shield(opening)
            except asyncio.CancelledError:
                await _interrupted_early(opening, trees, client)
                raise
            show_text([production.job_id])
            return await _produce(trees[0], production, client)


async def _produce(tree: CommandTree, production: Production, client: JobRegistryClient) -> int:
    running = asyncio.create_task(tree.run(production.write))
    asked = asyncio.create_task(production.stop_asked())
    try:
        await asyncio.wait([running, asked], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return await _settle(production, running.result())
        asked.result()
        await tree.stop()
        return await _settle(production, await running, is_stopped=True)
    except (NotFound, Aborted) as error:
        await tree.stop()
        tell(f"{production.job_id} is not this command's any more: {error.message}", "red")
        return exits.FAILED
    except asyncio.CancelledError:
        await _interrupted(tree, production, client, running)
        raise
    finally:
        for task in (running, asked):
            task.cancel()
        await asyncio.wait([running, asked])


async def _interrupted_early(
    opening: asyncio.Task[GrpcProduction], trees: Sequence[CommandTree], client: JobRegistryClient
) -> None:
    """A command that runs is a job soon, which nobody but we can settle; without one there will be no job."""
    if trees:
        await asyncio.wait([opening], timeout=_ASK_SECONDS)
    opening.cancel()
    await asyncio.wait([opening])
    if not opening.cancelled() and opening.exception() is None:
        production = opening.result()
        await _interrupted(trees[0], production, client, asyncio.create_task(trees[0].run(production.write)))


async def _interrupted(
    tree: CommandTree, production: Production, client: JobRegistryClient, running: asyncio.Task[Exit]
) -> None:
    """Whoever sits at this terminal wants it stopped: the registry is told so, and then that it is."""
    with suppress(FanfoldError, TimeoutError):
        async with asyncio.timeout(_ASK_SECONDS):
            await client.cancel_job(production.job_id, INTERRUPTED)
    await tree.stop()
    await _settle(production, await running, is_stopped=True)


async def _settle(production: Production, ended: Exit, *, is_stopped: bool = False) -> int:
    """Tell how the command ended, as long as it takes; the exit code for that."""
    if is_stopped:
        await production.settle(JobState.KILLED, ended.words)
        return STOPPED
    await production.settle(JobState.FAILED if ended.code else JobState.COMPLETED, ended.words)
    return exits.SIGNALLED - ended.code if ended.code < 0 else ended.code
