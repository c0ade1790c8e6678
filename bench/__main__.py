"""Measures the mesh: `python -m bench [--steps N] [--rounds N] [--json]`.

Client, coordinator and node each run as processes of their own on this machine. Each round measures the raw echo and
the mesh in turn; the ratio is taken round by round, so a machine that is slower for a while spoils neither.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.echo import call_seconds, calls_per_second, echo_server
from fanfold import Mesh
from fanfold.cli.embedded import EmbeddedMesh, Plan
from fanfold.model.step import StepEvent
from fanfold.rpc.loop import run

PAYLOAD = "x" * 300
HINT = 256
ECHOES_IN_FLIGHT = 64

Figures = dict[str, list[float]]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000, help="steps of one fan-out (default 20000)")
    parser.add_argument("--rounds", type=int, default=3, help="times that everything is measured (default 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    figures = run(measure(arguments.steps, arguments.rounds))
    if arguments.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures, arguments.steps)
    return 0


async def measure(steps: int, rounds: int) -> Figures:
    """All figures, one value a round."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as directory:
        plan = Plan(data_dir=Path(directory), workspace=Path(directory), nodes=1, hint=HINT)
        async with echo_server() as echo, EmbeddedMesh(plan) as embedded, Mesh(embedded.server) as mesh:
            await fan_out(mesh, 1000, events=False)  # everything is warm after this
            for number in range(rounds):
                print(f"round {number + 1} of {rounds} ...", file=sys.stderr)
                for name, value in (await measure_round(echo, mesh, steps)).items():
                    figures.setdefault(name, []).append(value)
    return figures


async def measure_round(echo: str, mesh: Mesh, steps: int) -> dict[str, float]:
    """One value of each figure."""
    payload = PAYLOAD.encode()
    raw = await calls_per_second(echo, payload, seconds=2.0, in_flight=ECHOES_IN_FLIGHT)
    quiet = await fan_out(mesh, steps, events=False)
    told = await fan_out(mesh, steps, events=True)
    raw_seconds = statistics.median(await call_seconds(echo, payload, calls=500))
    step_seconds = statistics.median(await single_steps(mesh, 300))
    return {
        "echo calls/s": raw,
        "fan-out steps/s": quiet,
        "fan-out with events steps/s": told,
        "fan-out ratio": quiet / raw,
        "fan-out with events ratio": told / raw,
        "echo ms": raw_seconds * 1000,
        "one step ms": step_seconds * 1000,
        "one step ratio": step_seconds / raw_seconds,
    }


async def fan_out(mesh: Mesh, steps: int, *, events: bool) -> float:
    """Steps a second of one fan-out of no-op steps; with `events` the client hears of all starts and ends."""
    specs = [step(str(number)) for number in range(steps)]
    heard = 0

    def hear(_event: StepEvent) -> None:
        nonlocal heard
        heard += 1

    began = time.perf_counter()
    result = await mesh.parallel(specs, on_event=hear if events else None)
    seconds = time.perf_counter() - began
    if not all(outcome.success and outcome.output == PAYLOAD for outcome in result) or len(result) != steps:
        raise RuntimeError("some step did not do what it was to do; these figures would be worth nothing")
    if events and heard != 2 * steps:
        raise RuntimeError(f"{heard} events came for {steps} steps")
    return steps / seconds


async def single_steps(mesh: Mesh, count: int) -> list[float]:
    """How long single steps took, one after the other."""
    durations = []
    for number in range(count):
        began = time.perf_counter()
        await mesh.execute(step(str(number)))
        durations.append(time.perf_counter() - began)
    return durations


def step(task_id: str) -> dict[str, Any]:
    """A step that does nothing."""
    return {"task_id": task_id, "agent": "noop", "description": "nothing", "prompt": PAYLOAD}


def show(figures: Figures, steps: int) -> None:
    """Print the figures as least, median and most over the rounds."""
    print(f"fan-outs of {steps:,} no-op steps, {len(PAYLOAD)} bytes in and out, hint {HINT}; min / median / max")
    for name, values in figures.items():
        low, middle, high = min(values), statistics.median(values), max(values)
        form = ",.0f" if middle >= 100 else ".2f"
        print(f"  {name:28} {low:{form}} / {middle:{form}} / {high:{form}}")


if __name__ == "__main__":
    sys.exit(main())
