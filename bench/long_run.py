"""One fan-out that is long: what the coordinator holds of it, and whether its last steps cost more than its first."""

from __future__ import annotations

from bench.processes import Processes, microseconds_a_step
from bench.work import fan_out
from fanfold import Mesh
from fanfold.model.step import StepEnded, StepEvent

_WINDOW = 0.15
_MARGIN = 0.05
"""Parts of the run: how long the windows at its start and its end are, and how far from there."""


async def measure_long_run(mesh: Mesh, steps: int) -> dict[str, float]:
    """Memory a step at the coordinator, and the cost of the last steps as a multiple of that of the first."""
    processes = Processes.found()
    held_before = held = processes.resident("coordinator")
    begin, end = round(steps * _MARGIN), round(steps * (1 - _MARGIN))
    width = round(steps * _WINDOW)
    marks = {begin, begin + width, end - width, end}
    readings: list[dict[str, float]] = []
    ended = 0

    def hear(event: StepEvent) -> None:
        nonlocal ended, held
        ended += isinstance(event, StepEnded)
        if ended in marks and isinstance(event, StepEnded):
            readings.append(processes.seconds())
            held = max(held, processes.resident("coordinator"))

    await fan_out(mesh, steps, hear)
    first = microseconds_a_step(readings[0], readings[1], width)
    last = microseconds_a_step(readings[2], readings[3], width)
    return {
        "coordinator bytes a step": (held - held_before) / steps,
        "coordinator us a step, first": first["coordinator"],
        "coordinator us a step, last": last["coordinator"],
        "all us a step, last / first": sum(last.values()) / sum(first.values()),
    }
