"""Measures the journal: `python -m bench.journal [--steps N] [--rounds N] [--folder DIR] [--json]`.

Runs append batches of 64 steps at the same time, each step with the events of its start and its end and a record, and
each append durable before the next one of its run. Beside it, in the same round, as many bytes are written to a plain
file and synchronized as often: that is what the disk allows. CPU is that of the whole process, the making of what is
appended included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from coordinator.config import JournalSettings
from coordinator.journal.journal import Append, Entry, Holder, Journal, NewRun, Record
from coordinator.journal.opening import open_journal
from fanfold.model.run import Run, RunKind, RunState, StepCounts
from fanfold.rpc.loop import run

BATCH = 64
STARTED = b"s" * 120
ENDED = b"e" * 500
FINGERPRINT = "f" * 64
RUNS = (1, 4, 16)
HOLDER = Holder(name="bench", address="127.0.0.1:1")
OWNER = "bench"

Figures = dict[str, list[float]]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.journal", description=__doc__)
    parser.add_argument("--steps", type=int, default=50_000, help="steps of all runs together (default 50000)")
    parser.add_argument("--rounds", type=int, default=3, help="times that everything is measured (default 3)")
    parser.add_argument("--folder", type=Path, help="where files are written (default a temporary folder)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    figures: Figures = {}
    for number in range(arguments.rounds):
        print(f"round {number + 1} of {arguments.rounds} ...", file=sys.stderr)
        for name, value in run(measure_round(arguments.steps, arguments.folder)).items():
            figures.setdefault(name, []).append(value)
    if arguments.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures, arguments.steps)
    return 0


async def measure_round(steps: int, folder: Path | None) -> dict[str, float]:
    """One value of each figure."""
    figures: dict[str, float] = {}
    for runs in RUNS:
        name = "1 run" if runs == 1 else f"{runs} runs"
        async with a_journal(folder) as (journal, path):
            wall, cpu = await append_all(journal, steps, runs)
            figures[f"{name}: steps/s"] = steps / wall
            figures[f"{name}: CPU us a step"] = cpu / steps * 1e6
            figures[f"{name}: bytes a step"] = path.stat().st_size / steps
            if runs == 1:
                figures |= await measure_reads(journal, steps)
                figures["one step alone, ms"] = statistics.median(await single_appends(journal, 100)) * 1e3
    figures["plain file: batches/s"] = await asyncio.to_thread(plain_batches_per_second, folder)
    return figures


@asynccontextmanager
async def a_journal(folder: Path | None) -> AsyncIterator[tuple[Journal, Path]]:
    """A new journal and its file."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        path = Path(made) / "journal.db"
        async with open_journal(JournalSettings(path=str(path))) as journal:
            assert journal is not None
            yield journal, path


async def append_all(journal: Journal, steps: int, runs: int) -> tuple[float, float]:
    """How long it takes to append all steps, in seconds of the clock and of CPU."""
    names = [f"run-{number}" for number in range(runs)]
    for name in names:
        await accept(journal, name, steps // runs)
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(append_run(journal, name, steps // runs) for name in names))
    return time.perf_counter() - wall, time.process_time() - cpu


async def accept(journal: Journal, name: str, steps: int) -> None:
    """Keep a new run."""
    run = Run(
        run_id=name,
        kind=RunKind.PARALLEL,
        state=RunState.PENDING,
        owner=OWNER,
        workflow_id=name,
        steps=StepCounts(total=steps),
    )
    await journal.accept(NewRun(run=run), HOLDER, 3_600.0)


async def append_run(journal: Journal, name: str, steps: int) -> None:
    """Append a run's steps, batch after batch."""
    for first in range(0, steps, BATCH):
        numbers = range(first, min(first + BATCH, steps))
        await journal.append(batch(name, numbers, StepCounts(total=steps, succeeded=first)))


def batch(name: str, numbers: Sequence[int], steps: StepCounts) -> Append:
    """The append of some steps."""
    entries = []
    for number in numbers:
        entries += [Entry(2 * number + 1, STARTED, outcomes_only=False), Entry(2 * number + 2, ENDED)]
    records = [Record(f"task-{number}", FINGERPRINT, ENDED) for number in numbers]
    return Append(run_id=name, epoch=1, entries=entries, records=records, steps=steps)


async def measure_reads(journal: Journal, steps: int) -> dict[str, float]:
    """What it costs to take the run up again."""
    began = time.perf_counter()
    following = 1
    while page := await journal.entries("run-0", following):
        following = page[-1].sequence + 1
    events_read = time.perf_counter()
    records = await journal.records(OWNER, "run-0")
    records_read = time.perf_counter()
    if following != 2 * steps + 1 or len(records) != steps:
        raise RuntimeError("something is missing in the journal; these figures would be worth nothing")
    return {
        "events read/s": (following - 1) / (events_read - began),
        "records read/s": len(records) / (records_read - events_read),
    }


async def single_appends(journal: Journal, count: int) -> list[float]:
    """How long appends of one step take, one after the other."""
    await accept(journal, "single", count)
    durations = []
    for number in range(count):
        began = time.perf_counter()
        await journal.append(batch("single", [number], StepCounts(total=count)))
        durations.append(time.perf_counter() - began)
    return durations


def plain_batches_per_second(folder: Path | None, count: int = 200) -> float:
    """Batches a second, written to a plain file and synchronized one by one."""
    data = (STARTED + ENDED + ENDED) * BATCH
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        began = time.perf_counter()
        for _ in range(count):
            file.write(data)
            os.fdatasync(file.fileno())
        return count / (time.perf_counter() - began)


def show(figures: Figures, steps: int) -> None:
    """Print the figures as least, median and most over the rounds."""
    print(f"{steps:,} steps in batches of {BATCH}, synchronized; min / median / max")
    for name, values in figures.items():
        low, middle, high = min(values), statistics.median(values), max(values)
        form = ",.0f" if middle >= 100 else ".2f"
        print(f"  {name:28} {low:{form}} / {middle:{form}} / {high:{form}}")


if __name__ == "__main__":
    sys.exit(main())
