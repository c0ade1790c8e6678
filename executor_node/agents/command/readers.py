"""How a program's standard output is read as it comes."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from typing import Any, Protocol

from executor_node.agents.command.report import Report
from executor_node.told import Result

MAX_VALUE_BYTES = 4 * 2**20
"""A larger text is not read as JSON: the node's other steps would have to wait for seconds."""

Take = Callable[[Any], None]
"""Takes one JSON value that was written."""


class Reader(Protocol):
    """Reads what a program writes."""

    def add(self, data: bytes) -> bool:
        """More was written. Returns whether it is still not too much."""
        ...

    def result(self) -> Result:
        """What came of the program, which writes no more. Called once."""
        ...


class Text:
    """Output that is text, told as it is written."""

    def __init__(self, report: Report, max_bytes: int) -> None:
        self._report = report
        self._max_bytes = max_bytes
        self._written = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, data: bytes) -> bool:
        """More was written."""
        kept = data[: self._max_bytes - len(self._written)]
        self._written += kept
        self._report.text(self._decoder.decode(kept))
        return len(kept) == len(data)

    def result(self) -> Result:
        """All of it."""
        return self._report.outcome(self._written.decode(errors="replace"))


class OneValue:
    """Output that is one JSON value, which is taken at the end. What is no JSON is the output as text."""

    def __init__(self, report: Report, take: Take, max_bytes: int) -> None:
        self._report = report
        self._take = take
        self._max_bytes = max_bytes
        self._written = bytearray()

    def add(self, data: bytes) -> bool:
        """More was written."""
        kept = data[: self._max_bytes - len(self._written)]
        self._written += kept
        return len(kept) == len(data)

    def result(self) -> Result:
        """What the value says."""
        try:
            value = _value_of(self._written)
        except (ValueError, RecursionError):
            return self._report.outcome(self._written.decode(errors="replace"))
        self._take(value)
        return self._report.outcome()


class Lines:
    """Output that is one JSON value a line; each is taken as it comes. Lines that are no JSON are told as text.

    `keeps_all` is for forms without a line for the result: all that was written is then the output. Otherwise only a
    single line may be too much. With `only_json` other lines are remarks, and no part of the output.
    """

    def __init__(
        self, report: Report, take: Take, max_bytes: int, *, keeps_all: bool = False, only_json: bool = False
    ) -> None:
        self._report = report
        self._take = take
        self._take_other = report.remark if only_json else report.text
        self._max_bytes = max_bytes
        self._written = bytearray() if keeps_all else None
        self._unread = bytearray()

    def add(self, data: bytes) -> bool:
        """More was written."""
        kept = data
        if self._written is not None:
            kept = data[: self._max_bytes - len(self._written)]
            self._written += kept
        searched = len(self._unread)
        self._unread += kept
        while (end := self._unread.find(b"\n", searched)) >= 0:
            line = bytes(self._unread[:end])
            del self._unread[: end + 1]
            searched = 0
            self._read(line.strip())
        return len(kept) == len(data) and len(self._unread) <= self._max_bytes

    def result(self) -> Result:
        """What the lines said."""
        self._read(bytes(self._unread[: self._max_bytes]).strip())
        self._unread.clear()
        return self._report.outcome(None if self._written is None else self._written.decode(errors="replace"))

    def _read(self, line: bytes) -> None:
        if not line:
            return
        try:
            value = _value_of(line)
        except (ValueError, RecursionError):
            self._take_other(line.decode(errors="replace") + "\n")
        else:
            self._take(value)


def _value_of(data: bytes | bytearray) -> Any:
    """The JSON value. Raises ValueError or RecursionError if it is none, or too much."""
    if len(data) > MAX_VALUE_BYTES:
        raise ValueError(f"more than {MAX_VALUE_BYTES:,} bytes")
    return json.loads(data)
