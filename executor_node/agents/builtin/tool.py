"""How built-in agents work on files: in a thread, so that no disk blocks the worker that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

from fanfold.agent import AgentFailed, StepContext

_MAX_DETAIL = 200

Work = Callable[[str, StepContext], str]
"""Takes the argument and the context; returns the answer, whose first line says it in short."""


async def run_tool(name: str, work: Work, argument: str, context: StepContext, *, detail: str = "") -> str:
    """Run `work` in a thread and tell that the tool finished; `detail` defaults to the answer's first line."""
    try:
        answer = await in_thread(lambda: work(argument, context))
    except AgentFailed as failure:
        context.tool_finished(name, success=False, detail=_one_line(failure.message))
        raise
    context.tool_finished(name, detail=_one_line(detail or answer.partition("\n")[0]))
    return answer


async def in_thread(work: Callable[[], str]) -> str:
    """What `work` comes to, in a thread: no disk must block the other steps of a worker.

    A step that is told cancelled has ended, its threads too (F1); `work` sees that by `is_cancelled`.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.gather(running, return_exceptions=True)
        raise


def matching_files(pattern: str, context: StepContext) -> Iterator[tuple[str, Path]]:
    """As `WorkspaceFiles.walk`, until the step is cancelled. A node's own looks at that also where nothing matches."""
    for found in context.workspace.walk(pattern):
        if context.is_cancelled():
            raise AgentFailed("stopped")
        yield found


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_MAX_DETAIL]


def count(number: int, noun: str, plural: str = "") -> str:
    """As "1 file" or "2,873 files"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
