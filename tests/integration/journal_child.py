"""Processes that share a journal's file: `journal_child.py FOLDER NAME append|claim`, until killed or done.

They tell when they are ready, and begin when they are told anything.

`append` accepts runs and appends to them all at once, and tells each append that returned as "run last-sequence".
`claim` claims whatever nobody holds, one run at a time, until there is nothing left, and tells each.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import structlog

from coordinator.journal.journal import Holder, Journal
from support.journals import LONG, append, events, new_run, record, sqlite_journal

RUNS = 4
BATCH = 8


def tell(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def append_for_ever(journal: Journal, holder: Holder, run_id: str) -> None:
    await journal.accept(new_run(run_id, workflow_id=run_id), holder, LONG)
    first = 1
    while True:
        last = first + BATCH - 1
        await journal.append(append(run_id, events(first, BATCH), records=[record(str(last))]))
        tell(run_id, last)
        first += BATCH


async def claim_all(journal: Journal, holder: Holder) -> None:
    while claimed := await journal.claim(holder, LONG, limit=1):
        tell(claimed[0].run.run_id, claimed[0].epoch)


async def main(folder: str, name: str, what: str) -> None:
    holder = Holder(name=name, address="127.0.0.1:1")
    async with sqlite_journal(Path(folder), inline_bytes=0 if name == "by-reference" else 65_536) as journal:
        tell("ready")
        await asyncio.to_thread(sys.stdin.readline)
        if what == "claim":
            await claim_all(journal, holder)
        else:
            await asyncio.gather(*(append_for_ever(journal, holder, f"{name}-{number}") for number in range(RUNS)))


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(main(*sys.argv[1:]))
