"""Measures what a large step costs the small ones beside it: `python -m bench.large [--rounds N] [--megabytes N]`.

A thousand small steps, some in flight, are measured alone, and while another caller runs a step over and over whose
prompt and output are large. All are processes of their own on this machine, so with few cores a good part of the ratio
is what the large texts take on the CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from bench.meshes import warm_mesh
from bench.work import step
from fanfold import Mesh
from fanfold.rpc.loop import run

STEPS = 1000
IN_FLIGHT = 8


def main() -> int:
    """Measure and print, or be the caller of large steps."""
    parser = argparse.ArgumentParser(prog="python -m bench.large", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="times that both are measured (default 5)")
    parser.add_argument("--megabytes", type=int, default=50, help="size of prompt and output (default 50)")
    parser.add_argument("--call", metavar="SERVER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.call:
        run(call_for_ever(arguments.call, arguments.megabytes))
    else:
        run(measure(arguments.rounds, arguments.megabytes))
    return 0


async def measure(rounds: int, megabytes: int) -> None:
    """Print the median time of a small step alone and beside large ones, round by round."""
    ratios = []
    print(f"{STEPS:,} small steps, {IN_FLIGHT} in flight: median ms alone, beside steps of {megabytes} MB, ratio")
    async with warm_mesh() as mesh:
        for _ in range(rounds):
            alone = await median_milliseconds(mesh)
            async with large_steps(mesh.server, megabytes) as lines:
                began = time.perf_counter()
                beside = await median_milliseconds(mesh)
                seconds = time.perf_counter() - began
                large = await lines_in(lines)
            ratios.append(beside / alone)
            print(f"  {alone:7.2f} {beside:7.2f} {beside / alone:7.2f}   {large} large steps in {seconds:.1f} s")
    print(f"  ratio {min(ratios):.2f} / {statistics.median(ratios):.2f} / {max(ratios):.2f}")


async def lines_in(stream: asyncio.StreamReader) -> int:
    """How many lines have come."""
    count = 0
    with suppress(TimeoutError):
        while True:
            async with asyncio.timeout(0.01):
                await stream.readline()
            count += 1
    return count


async def median_milliseconds(mesh: Mesh) -> float:
    """The median of what small steps take, one after the other at each of the places in flight."""
    durations: list[float] = []

    async def work(place: int) -> None:
        for number in range(STEPS // IN_FLIGHT):
            began = time.perf_counter()
            outcome = await mesh.execute(step(f"{place}.{number}"))
            durations.append(time.perf_counter() - began)
            if not outcome.success:
                raise RuntimeError(f"a small step failed: {outcome.failure}")

    await asyncio.gather(*(work(place) for place in range(IN_FLIGHT)))
    return statistics.median(durations) * 1000


@asynccontextmanager
async def large_steps(server: str, megabytes: int) -> AsyncIterator[asyncio.StreamReader]:
    """The output of a process that runs a large step over and over while the block lasts: a line for each."""
    command = ["-m", "bench.large", "--megabytes", str(megabytes), "--call", server]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        await process.stdout.readline()  # the first one has been there and back
        yield process.stdout
    finally:
        process.kill()
        await process.wait()


async def call_for_ever(server: str, megabytes: int) -> None:
    """Run a large step over and over, and print a line for each."""
    prompt = "0123456789" * (megabytes * 100_000)
    async with Mesh(server) as mesh:
        while True:
            outcome = await mesh.execute({**step("large"), "prompt": prompt})
            if outcome.output != prompt:
                raise RuntimeError(f"the large step failed: {outcome.failure}")
            print("done", flush=True)


if __name__ == "__main__":
    sys.exit(main())
