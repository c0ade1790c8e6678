"""What is measured: fan-outs and single steps of an agent that does nothing."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from fanfold import Mesh
from fanfold.model.step import StepEvent
from fanfold.sdk.parallel import ParallelRun

PAYLOAD = "x" * 300

Hear = Callable[[StepEvent], None]


def step(task_id: str) -> dict[str, Any]:
    """A step that does nothing."""
    return {"task_id": task_id, "agent": "noop", "description": "nothing", "prompt": PAYLOAD}


async def fan_out(mesh: Mesh, steps: int, hear: Hear | None = None) -> float:
    """Steps a second of one fan-out of no-op steps; with `hear` the client is told of all starts and ends."""
    return await _steps_a_second(mesh.parallel, steps, hear)


async def fan_out_resumably(mesh: Mesh, steps: int, hear: Hear | None = None) -> float:
    """As `fan_out`, with every event durable before it is told."""

    def run(specs: list[dict[str, Any]], *, on_event: Hear | None) -> ParallelRun:
        return mesh.parallel_resumable(specs, f"bench-{uuid.uuid4().hex}", on_event=on_event)

    return await _steps_a_second(run, steps, hear)


async def _steps_a_second(run: Callable[..., ParallelRun], steps: int, hear: Hear | None) -> float:
    specs = [step(str(number)) for number in range(steps)]
    heard = 0

    def count(event: StepEvent) -> None:
        nonlocal heard
        heard += 1
        if hear is not None:
            hear(event)

    began = time.perf_counter()
    result = await run(specs, on_event=None if hear is None else count)
    seconds = time.perf_counter() - began
    if not all(outcome.success and outcome.output == PAYLOAD for outcome in result) or len(result) != steps:
        raise RuntimeError("some step did not do what it was to do; these figures would be worth nothing")
    if hear is not None and heard != 2 * steps:
        raise RuntimeError(f"{heard} events came for {steps} steps")
    return steps / seconds


def ignore(_event: StepEvent) -> None:
    """Hear of everything, and do nothing about it."""


async def single_steps(mesh: Mesh, count: int) -> list[float]:
    """How long single steps took, one after the other."""
    durations = []
    for number in range(count):
        began = time.perf_counter()
        await mesh.execute(step(str(number)))
        durations.append(time.perf_counter() - began)
    return durations
