"""Steps that leave a line in a file when they have run, and runs of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from fanfold.model.run import ParallelResult
from fanfold.sdk.parallel import ParallelRun
from support.mesh import until


def step(task_id: str, prompt: str, agent: str = "shell") -> dict[str, str]:
    """A step in the form that callers write."""
    return {"task_id": task_id, "agent": agent, "description": "d", "prompt": prompt}


def noted(count: int, seconds: float = 0.15, *, held_from: int | None = None) -> list[dict[str, str]]:
    """Steps s0, s1 ... that each take a time and leave a line; they put out "out 0" and so on.

    From step `held_from` on they wait until the workspace has a file `go`.
    """
    held = count if held_from is None else held_from
    commands = [f"sleep {seconds}; echo s{n} >> ran; echo out {n}" for n in range(count)]
    commands[held:] = [f"until test -e go; do sleep 0.05; done; {command}" for command in commands[held:]]
    return [step(f"s{n}", command) for n, command in enumerate(commands)]


def ran(workspace: Path) -> Counter[str]:
    """How often each step has run to its end."""
    file = workspace / "ran"
    return Counter(file.read_text().split() if file.exists() else [])


def ended(run: ParallelRun) -> set[str]:
    """Task ids of the steps whose outcomes have come."""
    return {outcome.task_id for outcome in run.outcomes if outcome is not None}


async def begun(run: ParallelRun, count: int = 8) -> asyncio.Future[ParallelResult]:
    """A run of which at least so many steps have ended, and more have not."""
    task: asyncio.Future[ParallelResult] = asyncio.ensure_future(run)
    await until(lambda: len(ended(run)) >= count or task.done(), "some steps have ended")
    assert not task.done()
    return task
