"""Tasks that run while a block lasts, and are owned by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def background(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `works` while the block lasts; at its end they are cancelled and waited for.

    One that fails cancels the block, and its error is raised in an ExceptionGroup. An error of the block itself is
    raised as it is.
    """
    error: Exception | GeneratorExit | None = None
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
        try:
            yield
        except (Exception, GeneratorExit) as raised:  # a task group would wrap it
            error = raised
        finally:
            for task in tasks:
                task.cancel()
    if error is not None:
        raise error
