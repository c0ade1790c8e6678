"""Tools of MCP servers. Heavy, so imported only for agents that have any."""

from __future__ import annotations

import json
from typing import Any

from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from pydantic_ai import RunContext
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.mcp import CallToolFunc, MCPToolset
from pydantic_ai.messages import BinaryContent
from pydantic_ai.toolsets import AbstractToolset

from executor_node.agents.llm.assignment import ToolServer
from executor_node.agents.llm.tools import MAX_ANSWER, capped

_START_SECONDS = 60.0
"""A program may have to be fetched before it starts, as by npx and uvx."""
_MAX_PARTS = 16
_MAX_PICTURE = 2**20


def server_toolset(server: ToolServer, directory: str) -> AbstractToolset[None]:
    """The tools of a server; its program, if it is one, runs in `directory` while the toolset is entered."""
    transport: StdioTransport | StreamableHttpTransport
    if server.command:
        program, *arguments = server.command
        transport = StdioTransport(program, arguments, env=dict(server.environment), cwd=directory, keep_alive=False)
    else:
        headers = {"Authorization": f"Bearer {server.token}"} if server.token else None
        transport = StreamableHttpTransport(server.url, headers=headers)
    toolset = MCPToolset[None](
        transport, tool_error_behavior="failed", process_tool_call=_call_bounded, init_timeout=_START_SECONDS
    )
    return toolset.prefixed(server.name)


async def _call_bounded(_run: RunContext[Any], call_tool: CallToolFunc, name: str, args: dict[str, Any]) -> Any:
    """Call a tool. What it answers is cut as what the tools of the workspace answer, for it all goes to the model."""
    try:
        answer = await call_tool(name, args)
    except ToolFailed as error:
        raise ToolFailed(capped(error.message)) from None
    return [_bounded(part) for part in answer[:_MAX_PARTS]] if isinstance(answer, list) else _bounded(answer)


def _bounded(part: Any) -> Any:
    if isinstance(part, str):
        return capped(part)
    if isinstance(part, BinaryContent):
        return part if len(part.data) <= _MAX_PICTURE else f"(more than {_MAX_PICTURE:,} bytes, which are left out)"
    text = json.dumps(part, ensure_ascii=False)
    return part if len(text) <= MAX_ANSWER else capped(text)
