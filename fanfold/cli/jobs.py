"""`fanfold jobs`: the jobs that a registry knows, listed, shown, read, waited for, stopped and removed."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

from fanfold.cli.connection import connected_jobs
from fanfold.cli.exits import Interrupted, OutputClosed
from fanfold.cli.interruption import run_interruptibly
from fanfold.cli.job_view import fares, job_in_words, job_table, state_cell
from fanfold.cli.output import show_document, show_json, show_json_line, show_table, show_text, tell
from fanfold.cli.printable import printable
from fanfold.errors import FailedPrecondition, NotFound, OutOfRange
from fanfold.model.job import Job, JobState
from fanfold.model.job_form import job_to_json
from fanfold.sdk.jobs import Jobs

STOP_SECONDS = 75.0
"""Longest wait for a job to be gone that was asked to stop; longer than registries wait."""


_MOST_LOOKED_AT = 1_000
"""The newest jobs, among which one is looked for by its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which jobs; what is empty does not matter."""

    owner: str = ""
    kind: str = ""
    states: Collection[str] = ()
    label: str = ""
    parent: str = ""


@contextmanager
def about(job_id: str) -> Iterator[None]:
    """What goes wrong with one job while the block lasts is told with its id, as it may be one of many."""
    try:
        yield
    except (NotFound, FailedPrecondition) as error:
        if job_id in error.message:
            raise
        raise type(error)(f"{job_id}: {error.message}", reason=error.reason) from None


async def id_of(jobs: Jobs, word: str) -> str:
    """The id of the job that a word means: it, or its number alone, which no two jobs share. Raises NotFound.

    Beginnings of ids mean nothing: with `parallel-1` gone, it would be some `parallel-12` that is stopped or removed.
    """
    if not word.isdecimal():
        return word
    for job in await jobs.list(limit=_MOST_LOOKED_AT):
        if job.id.rpartition("-")[2] == word:
            return job.id
    raise NotFound(f"there is no job with the number {word} among the newest; `fanfold jobs list` shows them")


def list_jobs(registry: str | None, wanted: Wanted, *, limit: int, as_json: bool) -> None:
    """Print jobs, newest first."""

    async def ask() -> list[Job]:
        async with connected_jobs(registry) as jobs:
            return await jobs.list(
                owner=wanted.owner,
                kind=wanted.kind,
                states=wanted.states,
                label=wanted.label,
                parent=wanted.parent,
                limit=limit + 1,
            )

    found = run_interruptibly(ask())
    if as_json:
        show_json("jobs", map(job_to_json, found[:limit]))
        return
    show_table(job_table(found[:limit]))
    if len(found) > limit:
        tell(f"These are the newest {limit:,}; --limit shows more.")
    elif not found:
        tell("There are no such jobs.")


def show_job(registry: str | None, job_id: str, *, as_json: bool, result: bool) -> None:
    """Print how a job fares, or with `result` the result it has left, as it is. Raises NotFound."""

    async def ask() -> Job | bytes:
        async with connected_jobs(registry) as jobs:
            with about(job_id):
                its = await id_of(jobs, job_id)
                return await jobs.result(its) if result else await jobs.get(its)

    found = run_interruptibly(ask())
    if isinstance(found, bytes):
        _write(found)
    elif as_json:
        show_document(job_to_json(found))
    else:
        show_text(job_in_words(found))


def show_logs(registry: str | None, job_id: str, *, source: str, offset: int, follow: bool) -> None:
    """Print a job's output as it is, and say on the side where some of it is lost.

    Raises:
        NotFound: there is no such job, or it has no such source.
        Interrupted: by a signal; the job goes on.
    """

    async def read() -> None:
        async with connected_jobs(registry) as jobs:
            with about(job_id):
                its = await id_of(jobs, job_id)
                async with aclosing(jobs.read_output(its, source, offset=offset, follow=follow)) as pieces:
                    async for piece in pieces:
                        if piece.gap_bytes:
                            tell(f"[{piece.gap_bytes:,} bytes are not held any more]", "yellow")
                        _write(piece.data)

    run_interruptibly(read())


def wait_for(registry: str | None, job_ids: Sequence[str], *, timeout: float | None, as_json: bool) -> bool:
    """Wait for each job at most `timeout` seconds, and print it as it is then. Whether all completed."""

    async def wait() -> list[Job]:
        settled = []
        async with connected_jobs(registry) as jobs:
            for job_id in job_ids:
                with about(job_id):
                    settled.append(await jobs.wait(await id_of(jobs, job_id), timeout=timeout))
        return settled

    return _show_ended(run_interruptibly(wait()), as_json=as_json)


def stop_jobs(registry: str | None, job_ids: Sequence[str], reason: str, *, wait: bool, as_json: bool) -> bool:
    """Ask jobs to stop, and with `wait` wait until they are gone. Whether all of them are, or are to be."""

    async def stop() -> list[Job]:
        asked = []
        async with connected_jobs(registry) as jobs:
            for job_id in job_ids:
                with about(job_id):
                    asked.append(await jobs.cancel(await id_of(jobs, job_id), reason))
            return [await jobs.wait(job.id, timeout=STOP_SECONDS) for job in asked] if wait else asked

    jobs = run_interruptibly(stop())
    _show_ended(jobs, as_json=as_json)
    return not wait or all(job.state.is_settled for job in jobs)


def remove_jobs(registry: str | None, job_ids: Sequence[str]) -> None:
    """Remove settled jobs. Raises FailedPrecondition for one that is not."""

    async def remove() -> None:
        async with connected_jobs(registry) as jobs:
            for job_id in job_ids:
                with about(job_id):
                    await jobs.delete(await id_of(jobs, job_id))
                tell(f"{job_id} is removed.")

    run_interruptibly(remove())


def watch_jobs(registry: str | None, wanted: Wanted, *, cursor: str, as_json: bool) -> None:
    """Print jobs as they change, until a signal comes.

    Raises:
        OutOfRange: what happened from the cursor on is not held any more.
        Interrupted: by a signal.
    """
    following = [cursor]

    async def watch() -> None:
        async with connected_jobs(registry) as jobs:
            watched = jobs.watch(
                cursor,
                owner=wanted.owner,
                kind=wanted.kind,
                states=wanted.states,
                label=wanted.label,
                parent=wanted.parent,
            )
            async with aclosing(watched) as changes:
                async for change in changes:
                    for job in change.jobs:
                        _show_change(job, as_json=as_json)
                    following[0] = change.cursor

    try:
        run_interruptibly(watch())
    except Interrupted:
        if following[0]:
            tell(f"Go on watching with: fanfold jobs watch --from {following[0]}")
        raise
    except OutOfRange as error:
        raise OutOfRange(f"{error.message}; `fanfold jobs list` shows what there is now") from None


def _show_ended(jobs: Sequence[Job], *, as_json: bool) -> bool:
    if as_json:
        show_json("jobs", map(job_to_json, jobs))
    else:
        show_table(job_table(jobs))
    return all(job.state is JobState.COMPLETED for job in jobs)


def _show_change(job: Job, *, as_json: bool) -> None:
    if as_json:
        show_json_line(job_to_json(job))
        return
    state, _ = state_cell(job)
    show_text([printable(f"{job.id}  {state}  {fares(job)}")])


def _write(data: bytes) -> None:
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise OutputClosed from None
