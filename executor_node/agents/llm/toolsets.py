"""The tools of a step, as pydantic-ai sees them: those of the workspace, and those of MCP servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import Any

from pydantic_ai import Tool
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

from executor_node.agents.llm.assignment import Assignment
from executor_node.agents.llm.tools import WorkspaceTools
from executor_node.workers.context import Context
from fanfold.agent import AgentFailed


def build_toolsets(assignment: Assignment, context: Context) -> Sequence[AbstractToolset[None]]:
    """The tools that the assignment names."""
    own = WorkspaceTools(context, assignment.fetch_hosts)
    tools: list[Tool[None]] = [Tool(_telling_failures(getattr(own, name)), name=name) for name in assignment.tools]
    if not assignment.servers:
        return [FunctionToolset(tools)]
    from executor_node.agents.llm.servers import server_toolset  # noqa: PLC0415 - it takes seconds and 50 MB

    return [
        FunctionToolset(tools),
        *(server_toolset(server, str(context.workspace.root)) for server in assignment.servers),
    ]


def _telling_failures(tool: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
    @wraps(tool)
    async def call(*args: Any, **kwargs: Any) -> str:
        try:
            return await tool(*args, **kwargs)
        except (AgentFailed, OSError, TimeoutError) as error:
            raise ToolFailed(str(error) or type(error).__name__) from None

    return call
