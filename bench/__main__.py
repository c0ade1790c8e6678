"""Measures the mesh: `python -m bench [--steps N] [--rounds N] [--long N] [--cancel N] [--no-take-over] [--json]`.

Client, coordinator and node each run as processes of their own on this machine. Each round measures the raw echo and
the mesh in turn; the ratio is taken round by round, so a machine that is slower for a while spoils neither. What the
processes take on the CPU is told beside it, as other work on the machine changes that least.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys

from bench.cancelling import seconds_to_cancel
from bench.echo import call_seconds, calls_per_second, echo_server, measure_plain
from bench.long_run import measure_long_run
from bench.meshes import HINT, warm_mesh
from bench.processes import Processes, microseconds_a_step
from bench.take_over import seconds_to_take_over
from bench.work import PAYLOAD, fan_out, fan_out_resumably, ignore, single_steps
from fanfold import Mesh
from fanfold.rpc.loop import run

ECHOES_IN_FLIGHT = 64
CALLS = 500
"""Calls one after the other, for how long one takes."""

Figures = dict[str, list[float]]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000, help="steps of one fan-out (default 20000)")
    parser.add_argument("--rounds", type=int, default=3, help="times that fan-outs and steps are measured (default 3)")
    parser.add_argument("--long", type=int, default=100_000, help="steps of the long run, 0 for none (default 100000)")
    parser.add_argument("--cancel", type=int, default=200, help="processes to cancel, 0 for none (default 200)")
    parser.add_argument("--no-take-over", action="store_true", help="leave coordinators where they are")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    figures = run(measure(arguments))
    if arguments.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures, arguments.steps)
    return 0


async def measure(arguments: argparse.Namespace) -> Figures:
    """All figures, one value a round; what comes after fan-outs and steps is done once, each in a mesh of its own."""
    figures: Figures = {}
    rounds, long, cancel = arguments.rounds, arguments.long, arguments.cancel

    def add(values: dict[str, float]) -> None:
        for name, value in values.items():
            figures.setdefault(name, []).append(value)

    async with echo_server() as echo, warm_mesh() as mesh:
        for number in range(rounds):
            print(f"round {number + 1} of {rounds} ...", file=sys.stderr)
            add(await measure_round(echo, mesh, arguments.steps))
    if long:
        print(f"a run of {long:,} steps ...", file=sys.stderr)
        async with warm_mesh() as mesh:
            add(await measure_long_run(mesh, long))
    if cancel:
        print(f"{cancel:,} processes to cancel ...", file=sys.stderr)
        async with warm_mesh() as mesh:
            add({f"cancel of {cancel:,} processes s": await seconds_to_cancel(mesh, cancel)})
    if not arguments.no_take_over:
        for how in (signal.SIGTERM, signal.SIGKILL):
            print(f"a coordinator that goes by {how.name} ...", file=sys.stderr)
            add({f"take-over after {how.name} s": await seconds_to_take_over(how)})
    return figures


async def measure_round(echo: str, mesh: Mesh, steps: int) -> dict[str, float]:
    """One value of each figure."""
    payload = PAYLOAD.encode()
    processes = Processes.found()
    raw = await calls_per_second(echo, payload, seconds=2.0, in_flight=ECHOES_IN_FLIGHT)
    quiet = await fan_out(mesh, steps)
    before = processes.seconds()
    told = await fan_out(mesh, steps, ignore)
    costs = microseconds_a_step(before, processes.seconds(), steps)
    before = processes.seconds()
    resumable = await fan_out_resumably(mesh, steps, ignore)
    resumable_costs = microseconds_a_step(before, processes.seconds(), steps)
    raw_seconds = statistics.median(await call_seconds(echo, payload, calls=CALLS))
    plain, plain_seconds = await measure_plain(payload, seconds=2.0, in_flight=ECHOES_IN_FLIGHT, calls=CALLS)
    step_seconds = statistics.median(await single_steps(mesh, 300))
    return {
        "echo calls/s": raw,
        "fan-out steps/s": quiet,
        "fan-out with events steps/s": told,
        "fan-out ratio": quiet / raw,
        "fan-out with events ratio": told / raw,
        "resumable steps/s": resumable,
        "resumable ratio": resumable / raw,
        **{f"{role} us a step": cost for role, cost in costs.items()},
        "all us a step": sum(costs.values()),
        "all us a resumable step": sum(resumable_costs.values()),
        "echo ms": raw_seconds * 1000,
        "one step ms": step_seconds * 1000,
        "one step ratio": step_seconds / raw_seconds,
        "echo on asyncio's loop calls/s": plain,
        "echo on asyncio's loop ms": plain_seconds * 1000,
        "fan-out with events, to that": told / plain,
        "resumable, to that": resumable / plain,
        "one step, to that": step_seconds / plain_seconds,
    }


def show(figures: Figures, steps: int) -> None:
    """Print the figures as least, median and most over the rounds."""
    print(f"fan-outs of {steps:,} no-op steps, {len(PAYLOAD)} bytes in and out, hint {HINT}; min / median / max")
    for name, values in figures.items():
        shown = sorted({min(values), statistics.median(values), max(values)})
        print(f"  {name:32} {' / '.join(f'{value:,.0f}' if value >= 100 else f'{value:.2f}' for value in shown)}")


if __name__ == "__main__":
    sys.exit(main())
