"""Compares with other systems: `python -m bench.compare [--rounds N] [--steps N] [--durable N]`.

Needs the extra `compare`: `pip install '.[compare]'` in an environment of its own. The workload and the machine are the
same: a fan-out of no-op steps of 300 bytes in and out, as many at once; in each round one system after the other. Ray,
which records nothing, is compared with a plain fan-out whose events are told; DBOS, which records each step in SQLite,
with a resumable one. The servers of Temporal and Restate are no Python packages, and are not measured here. Restate's
is one of npm (`@restatedev/restate-server`); a workflow of 10,000 such steps, by hand, had a tenth of the speed of a
resumable fan-out.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys

from bench.contestants import CONTESTANTS
from bench.echo import calls_per_second, echo_server
from bench.meshes import warm_mesh
from bench.work import PAYLOAD, fan_out, fan_out_resumably, ignore
from fanfold.rpc.loop import run

ECHOES_IN_FLIGHT = 64


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="times that all are measured (default 3)")
    parser.add_argument("--steps", type=int, default=10_000, help="steps of a fan-out (default 10000)")
    parser.add_argument("--durable", type=int, default=1000, help="steps of a workflow of DBOS (default 1000)")
    arguments = parser.parse_args()
    rounds = [run(measure(arguments.steps, arguments.durable)) for _ in range(arguments.rounds)]
    print("steps a second, and as multiples of raw unary gRPC calls; min / median / max")
    for name in rounds[0]:
        show(name, [figures[name] for figures in rounds])
        show("  to a raw call", [figures[name] / figures["raw unary echo"] for figures in rounds])
    show("fan-out / Ray", [figures["fan-out"] / figures["Ray, an async actor"] for figures in rounds])
    show("resumable / DBOS", [figures["resumable fan-out"] / figures["DBOS, a workflow"] for figures in rounds])
    return 0


async def measure(steps: int, durable: int) -> dict[str, float]:
    """One round."""
    async with echo_server() as echo:
        raw = await calls_per_second(echo, PAYLOAD.encode(), seconds=2.0, in_flight=ECHOES_IN_FLIGHT)
    async with warm_mesh() as mesh:
        told = await fan_out(mesh, steps, ignore)
        resumable = await fan_out_resumably(mesh, steps, ignore)
    return {
        "raw unary echo": raw,
        "fan-out": told,
        "resumable fan-out": resumable,
        "Ray, an async actor": await contestant("ray", steps),
        "DBOS, a workflow": await contestant("dbos", durable),
    }


async def contestant(name: str, steps: int) -> float:
    """Steps a second of another system, which runs in a process of its own."""
    assert name in CONTESTANTS
    print(f"{name} ...", file=sys.stderr)
    command = ["-m", "bench.contestants", name, str(steps)]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{name} failed; is the extra `compare` installed?")
    return float(output.split()[-1])


def show(name: str, values: list[float]) -> None:
    """Print the least, the median and the most of a figure."""
    shown = min(values), statistics.median(values), max(values)
    print(f"  {name:24} {' / '.join(f'{value:,.0f}' if value >= 100 else f'{value:.2f}' for value in shown)}")


if __name__ == "__main__":
    sys.exit(main())
