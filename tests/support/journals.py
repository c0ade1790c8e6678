"""Runs to keep in journals, and journals to keep them in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator.config import JournalSettings
from coordinator.journal.journal import Append, Entry, Holder, Journal, KeptRun, NewRun, Record, Retention
from coordinator.journal.opening import open_journal
from fanfold.model.run import Run, RunKind, RunState, StepCounts

ALICE = "alice"
HERE = Holder(name="here", address="127.0.0.1:7400")
THERE = Holder(name="there", address="127.0.0.1:7401")

LONG = 3_600.0
"""A lease that does not end during a test."""
OVER = 0.0
"""A lease that is over at once."""
ENDS = [RunState.COMPLETED, RunState.CANCELLED, RunState.FAILED]
KEEP_ALL = Retention()


@asynccontextmanager
async def sqlite_journal(folder: Path, **settings: Any) -> AsyncIterator[Journal]:
    """A journal in a file of `folder`."""
    path = str(folder / "journal.db")
    async with open_journal(JournalSettings.model_validate({"path": path, **settings})) as journal:
        assert journal is not None
        yield journal


@asynccontextmanager
async def postgres_journal(url: str, **settings: Any) -> AsyncIterator[Journal]:
    """A journal in a database of PostgreSQL."""
    async with open_journal(JournalSettings.model_validate({"url": url, **settings})) as journal:
        assert journal is not None
        yield journal


def new_run(run_id: str, *, owner: str = ALICE, workflow_id: str = "", request_id: str = "", **more: Any) -> NewRun:
    """A run to be kept; `more` are further fields of NewRun."""
    run = Run(
        run_id=run_id,
        kind=RunKind.PARALLEL,
        state=RunState.PENDING,
        owner=owner,
        workflow_id=workflow_id,
        steps=StepCounts(total=10),
    )
    fields: dict[str, Any] = {"run": run, "request_id": request_id}
    return NewRun(**(fields | more))


def events(first: int, count: int, data: bytes = b"event") -> list[Entry]:
    """Events with numbers from `first` on; each is different."""
    return [Entry(number, data + b" %d" % number, number % 2 == 0) for number in range(first, first + count)]


def append(run_id: str, entries: Sequence[Entry] = (), *, epoch: int = 1, **more: Any) -> Append:
    """What is appended to a run; `more` are further fields of Append."""
    fields: dict[str, Any] = {"run_id": run_id, "epoch": epoch, "entries": entries, "steps": StepCounts(total=10)}
    return Append(**(fields | more))


def ending(run_id: str, *, state: RunState = RunState.COMPLETED, **more: Any) -> Append:
    """What ends a run."""
    return append(run_id, state=state, **more)


def record(key: str, data: bytes = b"outcome", fingerprint: str = "f" * 64) -> Record:
    """A record."""
    return Record(key, fingerprint, data)


async def all_entries(journal: Journal, run_id: str, max_bytes: int = 1_048_576) -> list[Entry]:
    """All events of a run, page by page."""
    found: list[Entry] = []
    while page := await journal.entries(run_id, found[-1].sequence + 1 if found else 1, max_bytes):
        found += page
    return found


async def eventually(condition: Callable[[], Awaitable[bool]], what: str, seconds: float = 20.0) -> None:
    """Wait until a condition comes true, and fail naming it if it does not in time."""
    try:
        async with asyncio.timeout(seconds):
            while not await condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"still not after {seconds:g} s: {what}") from None


async def found(journal: Journal, run_id: str) -> KeptRun:
    """The run, without what changes while time passes."""
    kept = await journal.find(run_id)
    assert kept is not None
    return replace(kept, lease_left=0.0)
