"""Tools of MCP servers. Heavy, so imported only for agents that have any."""

from __future__ import annotations

from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.toolsets import AbstractToolset

from executor_node.agents.llm.assignment import ToolServer


def server_toolset(server: ToolServer, directory: str) -> AbstractToolset[None]:
    """The tools of a server; its program, if it is one, runs in `directory` while the toolset is entered."""
    transport: StdioTransport | StreamableHttpTransport
    if server.command:
        program, *arguments = server.command
        transport = StdioTransport(program, arguments, env=dict(server.environment), cwd=directory, keep_alive=False)
    else:
        headers = {"Authorization": f"Bearer {server.token}"} if server.token else None
        transport = StreamableHttpTransport(server.url, headers=headers)
    return MCPToolset[None](transport, tool_error_behavior="failed").prefixed(server.name)
