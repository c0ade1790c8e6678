"""Codex CLI: `codex exec`, which writes an event a line. What its calls have cost it tells at the end only.

Errors stand in events of their own, often twice; those in items are remarks and end nothing.
"""

from __future__ import annotations

import json
from typing import Any

from executor_node.agents import AgentDefinition
from executor_node.agents.command.definition import Access
from executor_node.agents.command.presets.words import prompt_with_all as prompt
from executor_node.agents.command.report import Report, tokens
from fanfold.model.step import AgentStepSpec, Usage

__all__ = ["VARIABLES", "CodexForm", "arguments", "prompt"]

VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "CODEX_API_KEY", "CODEX_HOME")
_SANDBOXES = {Access.READ: "read-only", Access.WRITE: "workspace-write", Access.FULL: "danger-full-access"}


def arguments(agent: AgentDefinition, _spec: AgentStepSpec) -> list[str]:
    """What comes after the program."""
    given = ["exec", "--json", "--skip-git-repo-check", "-s", _SANDBOXES[agent.access]]
    if agent.model:
        given += ["-m", agent.model]
    return [*given, "-"]


class CodexForm:
    """Takes its lines."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def take(self, value: Any) -> None:
        """Take what one line says."""
        match value:
            case {"type": "thread.started", "thread_id": session}:
                self._report.session(session)
            case {"type": "item.completed", "item": dict(item)}:
                self._item(item)
            case {"type": "item.started" | "item.updated"}:
                self._report.stir()
            case {"type": "turn.completed", "usage": dict(usage)}:
                self._report.failure = None  # what it told of before has passed
                given, written = tokens(usage.get("input_tokens")), tokens(usage.get("output_tokens"))
                self._report.turn(self._report.usage + Usage(input_tokens=given, output_tokens=written, requests=1))
            case {"type": "turn.failed", "error": {"message": message}} | {"type": "error", "message": message}:
                self._report.failed(_words(message))

    def _item(self, item: dict[str, Any]) -> None:
        match item:
            case {"type": "agent_message", "text": text}:
                self._report.message(text)
            case {"type": "command_execution", "command": command}:
                self._report.tool("shell", success=item.get("exit_code") == 0, detail=command)
            case {"type": "file_change"}:
                paths = [str(each.get("path")) for each in item.get("changes", ()) if isinstance(each, dict)]
                self._report.tool("edit", success=item.get("status") == "completed", detail=", ".join(paths))
            case {"type": "mcp_tool_call", "tool": tool}:
                self._report.tool(tool, success=item.get("status") == "completed", detail=item.get("server", ""))
            case {"type": "web_search", "query": query}:
                self._report.tool("web_search", detail=query)
            case _:
                self._report.stir()


def _words(message: object) -> object:
    """What the provider said, which may come as the JSON of its answer."""
    try:
        return json.loads(str(message))["error"]["message"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return message
