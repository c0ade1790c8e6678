"""What a command says that writes one JSON value a line.

    {"text": "..."}                                  text, as it is written
    {"tool": "grep", "success": true, "detail": "...", "source": "src/a.py", "lines": "3-17"}
                                                     a tool call finished; what it read becomes a source anchor
    {"turn": 2, "usage": {"input_tokens": 9, "output_tokens": 9, "requests": 1}}
                                                     a model round finished; the usage is the cost so far
    {"result": ...}                                  the result: text, or any other JSON value

All but the first key of each may be left out. Without a result line, the last line of another form is the result, and
without that everything the command wrote. Lines that are no JSON are told as text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from executor_node.workers.messages import Progress, Result, progress_from_message, text_of
from fanfold.anchors import Anchors
from fanfold.model.step import NO_USAGE, TextWritten, TurnFinished

_USAGE_FIELDS = ("input_tokens", "output_tokens", "requests")


class JsonLines:
    """Reads a command's lines as they come, tells its progress, and knows its result at the end."""

    def __init__(self, tell: Callable[[Progress], None], workspace: Path) -> None:
        self._tell = tell
        self._anchors = Anchors(workspace)
        self._unread = bytearray()
        self._result: tuple[Any] | None = None
        self._last: tuple[Any] | None = None
        self._usage = NO_USAGE

    def add(self, data: bytes) -> None:
        """More was written."""
        searched = len(self._unread)
        self._unread += data
        while (end := self._unread.find(b"\n", searched)) >= 0:
            line = bytes(self._unread[:end])
            del self._unread[: end + 1]
            searched = 0
            self._read(line.strip())

    def result(self, written: bytes) -> Result:
        """What came of the command, which wrote this in all."""
        self._read(bytes(self._unread).strip())
        self._unread.clear()
        output, structured_json = written.decode(errors="replace"), None
        if found := self._result or self._last:
            (value,) = found
            if isinstance(value, str):
                output = text_of(value)
            else:
                output = structured_json = text_of(json.dumps(value, ensure_ascii=False))
        return Result(output, structured_json, self._usage, self._anchors.collected)

    def _read(self, line: bytes) -> None:
        if not line:
            return
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            self._tell(TextWritten(text=line.decode(errors="replace") + "\n"))
            return
        match value:
            case {"result": result}:
                self._result = (result,)
            case {"text": _} | {"tool": _} | {"turn": _}:
                self._progress(value)
            case _:
                self._last = (value,)

    def _progress(self, value: dict[str, Any]) -> None:
        try:
            progress = progress_from_message(_message_of(value))
        except (ValueError, TypeError, AttributeError):  # looked like progress, but is something else
            self._last = (value,)
            return
        if isinstance(progress, TurnFinished):
            self._usage = progress.usage
        self._tell(progress)
        match value:
            case {"tool": tool, "source": str(source)} if value.get("success", True):
                self._anchors.observe(tool, text_of(source), str(value.get("lines", "")))


def _message_of(value: dict[str, Any]) -> list[Any]:
    match value:
        case {"text": text}:
            return ["text", 0, text]
        case {"tool": tool}:
            return ["tool", 0, tool, value.get("success", True), value.get("detail", "")]
        case _:
            usage = value.get("usage", {})
            return ["turn", 0, value["turn"], [usage.get(field, 0) for field in _USAGE_FIELDS]]
