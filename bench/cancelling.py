"""A run of many processes that is cancelled: how long until none of them is left (F1)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from bench.processes import descendants
from fanfold import Mesh
from fanfold.model.step import StepEvent, StepStarted

_START_SECONDS = 120.0
_POLL_SECONDS = 0.01


async def seconds_to_cancel(mesh: Mesh, steps: int) -> float:
    """Seconds from cancelling a fan-out of `steps` commands that would run for long until no process of it is left."""
    before = descendants()
    started = 0
    all_run = asyncio.Event()

    def hear(event: StepEvent) -> None:
        nonlocal started
        started += isinstance(event, StepStarted)
        if started == steps:
            all_run.set()

    async def run() -> None:
        await mesh.parallel([_sleeping(str(number)) for number in range(steps)], on_event=hear)

    task = asyncio.create_task(run())
    async with asyncio.timeout(_START_SECONDS):
        await all_run.wait()
        await _until(lambda: len(descendants() - before) >= 2 * steps)  # each has a launcher
    began = time.perf_counter()
    task.cancel()
    await _until(lambda: not descendants() - before)
    seconds = time.perf_counter() - began
    await asyncio.wait([task])
    return seconds


async def _until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110 - of processes that come and go somewhere else nobody tells
        await asyncio.sleep(_POLL_SECONDS)


def _sleeping(task_id: str) -> dict[str, Any]:
    return {"task_id": task_id, "agent": "shell", "description": "sleeps", "prompt": "exec sleep 600"}
