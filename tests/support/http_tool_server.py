"""A server of tools by the Model Context Protocol over HTTP, with the protocol's own library."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from mcp.server import MCPServer
from starlette.types import ASGIApp, Receive, Scope, Send

server = MCPServer("doubles")


@server.tool()
def double(number: int) -> str:
    """Doubles."""
    return str(2 * number)


@asynccontextmanager
async def http_tool_server(*, token: str) -> AsyncIterator[str]:
    """The server's URL on loopback; it answers those who bear the token."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        app = _guarded(server.streamable_http_app(), token)
        config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=1)
        running = uvicorn.Server(config)
        serving = asyncio.create_task(running.serve(sockets=[listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        finally:
            running.should_exit = True
            await serving


def _guarded(app: ASGIApp, token: str) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        if scope["type"] == "http" and headers.get(b"authorization") != f"Bearer {token}".encode():
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"who are you"})
        else:
            await app(scope, receive, send)

    return answer
