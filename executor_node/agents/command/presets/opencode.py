"""opencode: `opencode run`, which writes a part of its session a line, and tells after each round what it has cost.

It allows itself everything unless told not to, so what it may not do is said in OPENCODE_PERMISSION.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from executor_node.agents import AgentDefinition
from executor_node.agents.command.definition import Access
from executor_node.agents.command.presets.words import prompt_with_all as prompt
from executor_node.agents.command.report import Report, tokens
from fanfold.model.step import AgentStepSpec, Usage

__all__ = ["VARIABLES", "OpencodeForm", "arguments", "prompt", "settings"]

VARIABLES = ("OPENCODE_CONFIG", "OPENCODE_CONFIG_DIR", "OPENCODE_CONFIG_CONTENT", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
_FORBIDDEN = {
    Access.READ: {"edit": "deny", "bash": "deny", "external_directory": "deny"},
    Access.WRITE: {"bash": "deny", "external_directory": "deny"},
    Access.FULL: {},
}


def arguments(agent: AgentDefinition, _spec: AgentStepSpec) -> list[str]:
    """What comes after the program."""
    given = ["run", "--format", "json"]
    if agent.access is Access.FULL:
        given.append("--auto")
    return [*given, "-m", agent.model] if agent.model else given


def settings(agent: AgentDefinition) -> Mapping[str, str]:
    """Variables that it gets in any case."""
    permissions = {"OPENCODE_PERMISSION": json.dumps(_FORBIDDEN[agent.access])}
    return {"OPENCODE_DISABLE_AUTOUPDATE": "1"} | (permissions if _FORBIDDEN[agent.access] else {})


class OpencodeForm:
    """Takes its lines."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def take(self, value: Any) -> None:
        """Take what one line says."""
        if isinstance(value, dict):
            self._report.session(value.get("sessionID"))
        match value:
            case {"type": "step_start"}:
                self._report.message_begins()
            case {"type": "text", "part": {"text": text}}:
                self._report.text(text)
            case {"type": "tool_use", "part": {"tool": str(tool), "state": dict(state)}}:
                self._tool(tool, state)
            case {"type": "step_finish", "part": {"tokens": dict(told)}}:
                self._report.turn(self._report.usage + _usage(told))
            case {"type": "error", "error": error}:
                self._error(error)

    def _tool(self, tool: str, state: Mapping[str, Any]) -> None:
        success = state.get("status") == "completed"
        self._report.tool(tool, success=success, detail=state.get("title") or state.get("error") or "")
        match tool, state:
            case "read", {"input": {"filePath": path}} if success:
                self._report.read(tool, path, _lines(state.get("metadata")))
            case "webfetch", {"input": {"url": url}} if success:
                self._report.read(tool, url)

    def _error(self, error: Any) -> None:
        match error:
            case {"data": {"message": message, "statusCode": int(status)}}:
                self._report.failed(message, status)
            case {"data": {"message": message}} | {"message": message}:
                self._report.failed(message)
            case _:
                self._report.failed(error)


def _usage(told: Mapping[str, Any]) -> Usage:
    cache = told.get("cache")
    kept = cache if isinstance(cache, dict) else {}
    return Usage(
        input_tokens=tokens(told.get("input"), kept.get("read"), kept.get("write")),
        output_tokens=tokens(told.get("output"), told.get("reasoning")),
        requests=1,
    )


def _lines(metadata: Any) -> str:
    match metadata:
        case {"display": {"lineStart": int(first), "lineEnd": int(last), "totalLines": int(total)}}:
            return "" if last - first + 1 >= total else f"{first}-{last}"
    return ""
