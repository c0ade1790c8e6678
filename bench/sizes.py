"""Measures what a mesh takes of memory and disk, for docs/operations.md: `python -m bench.sizes [--steps N]`."""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import uuid
from contextlib import closing
from pathlib import Path

import psutil

from bench.work import fan_out, step
from fanfold import Mesh
from fanfold.cli.embedded import EmbeddedMesh, Plan
from fanfold.rpc.loop import run

Figures = dict[str, float]
MEBIBYTE = 2**20

_PAGES = ("page_count", "freelist_count", "page_size")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.sizes", description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000, help="steps of each fan-out (default 20000)")
    for name, value in run(measure(parser.parse_args().steps)).items():
        print(f"{name:50} {value:12,.1f}")


async def measure(steps: int) -> Figures:
    """All figures, of a mesh with one node of the default settings."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        async with (
            EmbeddedMesh(Plan(data_dir=folder, workspace=folder, nodes=1)) as embedded,
            Mesh(embedded.server, registry=embedded.registry) as mesh,
        ):
            await fan_out(mesh, 100)
            figures = {f"{name} at rest, MiB": size for name, size in _resident(embedded).items()}
            figures |= await _attached(mesh, embedded, steps)
            figures |= await _recorded(mesh, folder, steps)
            return figures | await _detached(mesh, folder, steps // 100)


async def _attached(mesh: Mesh, embedded: EmbeddedMesh, steps: int) -> Figures:
    before = most = _resident(embedded)["coordinator"]
    heard = 0

    def look(_event: object) -> None:
        nonlocal most, heard
        heard += 1
        if heard % 2_000 == 0:
            most = max(most, _resident(embedded)["coordinator"])

    await fan_out(mesh, steps, look)
    return {"coordinator, bytes a step of a run under way": (most - before) * MEBIBYTE / steps}


async def _recorded(mesh: Mesh, folder: Path, steps: int) -> Figures:
    """What the journal keeps of steps of 300 bytes in and out: of a run that has ended, and of one to be resumed."""
    before = _disk(folder / "journal.db")
    specs = [step(str(number)) for number in range(steps)]
    await mesh.parallel_resumable(specs, f"sizes-{uuid.uuid4().hex}")
    ended = _disk(folder / "journal.db")
    failing = {**step("fails"), "agent": "read", "prompt": "no-such-file"}
    await mesh.parallel_resumable([*specs, failing], f"sizes-{uuid.uuid4().hex}")
    return {
        "journal, bytes a step of an ended run": (ended - before) / steps,
        "journal, bytes a step of a run to be resumed": (_disk(folder / "journal.db") - ended) / steps,
    }


async def _detached(mesh: Mesh, folder: Path, runs: int) -> Figures:
    before = _disk(folder / "jobs.db")
    for number in range(runs):
        await (await mesh.start([step(str(number))])).result()
    return {"job registry, bytes on disk a settled job": (_disk(folder / "jobs.db") - before) / runs}


def _resident(embedded: EmbeddedMesh) -> dict[str, float]:
    """MiB of memory that each service and what is below it holds, counting shared pages once."""
    ours = psutil.Process().children(recursive=True)
    sizes = {}
    for name in (child.name for child in embedded.services):
        first = next(process for process in ours if any(word.endswith(f"{name}.yaml") for word in process.cmdline()))
        processes = [first, *first.children(recursive=True)]
        sizes[name] = sum(process.memory_full_info().pss for process in processes) / MEBIBYTE
    return sizes


def _disk(file: Path) -> int:
    """Bytes of the pages of a database that are in use, those in its log too."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
        sizes = {name: database.execute(f"PRAGMA {name}").fetchone()[0] for name in _PAGES}
    pages: int = sizes["page_count"] - sizes["freelist_count"]
    return pages * int(sizes["page_size"])


if __name__ == "__main__":
    main()
