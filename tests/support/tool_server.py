"""A program that offers a tool by the Model Context Protocol, on its standard streams.

Of 0 it has much to say, and at 13 it dies.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def answer(method: str, asked: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            capabilities: dict[str, Any] = {"tools": {}}
            server = {"name": "doubles", "version": "1"}
            version = asked["protocolVersion"]
            return {"protocolVersion": version, "capabilities": capabilities, "serverInfo": server}
        case "tools/list":
            schema = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
            return {"tools": [{"name": "double", "description": "Doubles.", "inputSchema": schema}]}
        case "tools/call":
            number = asked["arguments"]["number"]
            if number == 13:
                os._exit(1)
            if number == 0:
                return {"content": [{"type": "text", "text": "0" * 10_000_000}], "isError": False}
            text = f"{2 * number} {sorted(name for name in os.environ if name.startswith('TOOL_'))}"
            return {"content": [{"type": "text", "text": text}], "isError": False}
    return {}


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            result = answer(message["method"], message.get("params") or {})
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
