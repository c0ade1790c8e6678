"""Agents that do nothing: for trying out a mesh, and for measuring it."""

from __future__ import annotations

import asyncio

from fanfold.agent import AgentFailed, StepContext
from fanfold.model.step import AgentStepSpec

MAX_SLEEP_SECONDS = 86_400.0
_MAX_NUMBER_LENGTH = 32


async def noop(spec: AgentStepSpec, context: StepContext) -> str:
    """Answers with the prompt. Tells no progress: it measures the mesh and nothing else."""
    return spec.prompt


async def sleep(spec: AgentStepSpec, context: StepContext) -> str:
    """Waits for the number of seconds in the prompt, 0 to 86,400."""
    seconds = _seconds(spec.prompt)
    await asyncio.sleep(seconds)
    slept = f"slept {seconds:.10g} seconds"
    context.tool_finished("sleep", detail=slept)
    return slept


def _seconds(prompt: str) -> float:
    wrong = AgentFailed(f"sleep takes a number of seconds from 0 to {MAX_SLEEP_SECONDS:,.0f}")
    try:
        seconds = float(prompt[:_MAX_NUMBER_LENGTH])
    except ValueError:
        raise wrong from None
    if len(prompt) > _MAX_NUMBER_LENGTH or not 0 <= seconds <= MAX_SLEEP_SECONDS:
        raise wrong
    return seconds
