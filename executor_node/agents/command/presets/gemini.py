"""Gemini CLI with JSON lines. Messages come in pieces; what its calls have cost comes with the result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from executor_node.agents import AgentDefinition
from executor_node.agents.command.definition import Access
from executor_node.agents.command.presets.words import prompt_with_all as prompt
from executor_node.agents.command.report import Report, tokens
from fanfold.model.step import AgentStepSpec, Usage

__all__ = ["VARIABLES", "GeminiForm", "arguments", "prompt"]

VARIABLES = (
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "GOOGLE_GEMINI_BASE_URL",
    "GOOGLE_CLOUD_PROJECT",
    "GOOGLE_CLOUD_LOCATION",
    "GOOGLE_GENAI_USE_VERTEXAI",
    "GOOGLE_APPLICATION_CREDENTIALS",
)
_MODES = {Access.READ: "default", Access.WRITE: "auto_edit", Access.FULL: "yolo"}


def arguments(agent: AgentDefinition, _spec: AgentStepSpec) -> list[str]:
    """What comes after the program."""
    given = ["-o", "stream-json", "--approval-mode", _MODES[agent.access], "--skip-trust"]
    return [*given, "-m", agent.model] if agent.model else given


class GeminiForm:
    """Takes its lines."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._tools: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._rounds = 0
        self._in_message = False

    def take(self, value: Any) -> None:
        """Take what one line says."""
        match value:
            case {"type": "init", "session_id": session}:
                self._report.session(session)
            case {"type": "message", "role": "assistant", "content": text}:
                self._begin_round()
                self._report.text(text)
            case {"type": "tool_use", "tool_id": str(number), "tool_name": str(name), "parameters": dict(given)}:
                self._begin_round()
                self._tools[number] = (name, given)
                self._report.stir()
            case {"type": "tool_result", "tool_id": str(number)} if number in self._tools:
                self._in_message = False
                self._tool_result(*self._tools.pop(number), success=value.get("status") == "success")
            case {"type": "error", "severity": "error", "message": message}:
                self._report.failed(message)
            case {"type": "result"}:
                self._result(value)

    def _begin_round(self) -> None:
        """What comes first after the start or a tool's result begins another answer of the model."""
        if not self._in_message:
            self._in_message = True
            self._rounds += 1
            self._report.message_begins()

    def _tool_result(self, name: str, given: Mapping[str, Any], *, success: bool) -> None:
        source = given.get("file_path") or given.get("absolute_path") or given.get("url")
        self._report.tool(name, success=success, detail=source or given.get("command") or given.get("pattern") or "")
        if success and name in {"read_file", "web_fetch"}:
            first, last = given.get("start_line"), given.get("end_line")
            lines = f"{first}-{last}" if isinstance(first, int) and isinstance(last, int) else ""
            self._report.read(name, source, lines)

    def _result(self, value: Mapping[str, Any]) -> None:
        match value:
            case {"stats": {"input_tokens": given} as stats}:
                # What was thought stands in the total only.
                written = tokens(stats.get("total_tokens")) - tokens(given) or tokens(stats.get("output_tokens"))
                usage = Usage(input_tokens=tokens(given), output_tokens=max(written, 0), requests=self._rounds)
                if usage.tokens:
                    self._report.turn(usage)
        if value.get("status") == "error":
            error = value.get("error")
            message = error.get("message") if isinstance(error, dict) else error
            self._report.failed(*_words_and_status(message))


def _words_and_status(message: object) -> tuple[object, int | None]:
    """What the provider said, and its status in HTTP, which come as the JSON of its answer."""
    answer = str(message).partition("[API Error: ")[2].rpartition("]")[0]
    try:
        error = json.loads(answer)["error"]
        code = error.get("code")
        return f"{error['message']} ({error.get('status', '')})", code if isinstance(code, int) else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return message, None
