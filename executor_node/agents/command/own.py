"""fanfold's own form of lines, for programs that are written to be agents.

    {"text": "..."}                                  text, as it is written
    {"tool": "grep", "success": true, "detail": "...", "source": "src/a.py", "lines": "3-17"}
                                                     a tool call finished; what it read becomes a source anchor
    {"turn": 2, "usage": {"input_tokens": 9, "output_tokens": 9, "requests": 1}}
                                                     a model round finished; the usage is the cost so far
    {"session": "..."}                               the program's own name for its session
    {"result": ...}                                  the result: text, or any other JSON value

All but the first key of each may be left out. Without a result line, the last line of another form is the result, and
without that everything the command wrote.
"""

from __future__ import annotations

from typing import Any

from executor_node.agents.command.report import Report
from executor_node.workers.messages import progress_from_message
from fanfold.model.step import TextWritten, ToolFinished, TurnFinished

_USAGE_FIELDS = ("input_tokens", "output_tokens", "requests")


class OwnForm:
    """Takes lines of this form."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._has_result = False

    def take(self, value: Any) -> None:
        """Take what one line says."""
        match value:
            case {"result": result}:
                self._has_result = True
                self._report.result(result)
            case {"text": _} | {"tool": _} | {"turn": _}:
                self._progress(value)
            case {"session": str(session), **rest} if not rest:
                self._report.session(session)
            case _:
                self._other(value)

    def _progress(self, value: dict[str, Any]) -> None:
        try:
            progress = progress_from_message(_message_of(value))
        except (ValueError, TypeError, AttributeError):  # looked like progress, but is something else
            self._other(value)
            return
        match progress:
            case TextWritten():
                self._report.text(progress.text)
            case ToolFinished():
                self._report.tool(progress.name, success=progress.success, detail=progress.detail)
            case TurnFinished():
                self._report.turn(progress.usage, progress.turn)
        if isinstance(progress, ToolFinished) and progress.success:
            self._report.read(value["tool"], value.get("source"), str(value.get("lines", "")))

    def _other(self, value: Any) -> None:
        if not self._has_result:
            self._report.result(value)


def _message_of(value: dict[str, Any]) -> list[Any]:
    match value:
        case {"text": text}:
            return ["text", 0, text]
        case {"tool": tool}:
            return ["tool", 0, tool, value.get("success", True), value.get("detail", "")]
        case _:
            usage = value.get("usage", {})
            return ["turn", 0, value["turn"], [usage.get(field, 0) for field in _USAGE_FIELDS]]
