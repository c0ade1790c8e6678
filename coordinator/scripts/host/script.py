"""A script as its process tells of it: its calls, phases and lines, held to their limits (C24, C25)."""

from __future__ import annotations

from collections import Counter

from coordinator.scripts.engine.frames import Frame
from coordinator.scripts.host.calls import Call, CallTerms, Misuse, call_of, place, printed
from coordinator.scripts.host.failures import Failures
from coordinator.scripts.host.limits import MAX_LINES, ScriptLimits
from coordinator.scripts.host.messages import NotOfPrelude, number_of, object_of, text_of

_MAX_TITLE = 256
_MAX_LOG = 4096


class Script:
    """What has been said so far; what it has lost is among the `failures`.

    Each method takes one frame, and raises Misuse or NotOfPrelude.
    """

    def __init__(self, limits: ScriptLimits, terms: CallTerms, failures: Failures) -> None:
        self._limits = limits
        self._terms = terms
        self._failures = failures
        self.calls = 0
        """How many agent() calls it has made."""
        self._phase = ""
        self._lines = 0
        self._occurrences: Counter[str] = Counter()

    def call(self, frame: Frame) -> Call:
        """It calls agent()."""
        number, line = number_of(frame, "id"), number_of(frame, "line")
        if number != self.calls + 1:
            raise NotOfPrelude("id")
        most = self._limits.max_total_agents
        if number > most:
            raise Misuse(f"{place(line)}agent(): the run may start at most {most:,} agents (max_total_agents)")
        prompt, options = text_of(frame, "prompt"), object_of(frame, "options")
        call = call_of(number, line, prompt, options, self._phase, self._terms, self._occurrences)
        self.calls = number
        return call

    def items(self, frame: Frame) -> None:
        """It gives a combinator so many items."""
        count, line, most = number_of(frame, "count"), number_of(frame, "line"), self._limits.items
        if count > most:
            raise Misuse(f"{place(line)}parallel() and pipeline() take at most {most:,} items a call, not {count:,}")

    def phase(self, frame: Frame) -> str:
        """It enters a phase, which has this title."""
        self._phase = printed(text_of(frame, "title"), _MAX_TITLE)
        self._count_line()
        return self._phase

    def log(self, frame: Frame) -> str:
        """It writes this line."""
        self._count_line()
        return text_of(frame, "message")[:_MAX_LOG]

    def lost(self, frame: Frame) -> str:
        """An item became null as a function of the script has thrown: the line that says so."""
        where = f"{text_of(frame, 'where')} item {number_of(frame, 'item')}"
        if frame["where"] == "pipeline":
            where += f", stage {number_of(frame, 'stage')}"
        error, line = text_of(frame, "error"), number_of(frame, "line")
        self._count_line()
        self._failures.add_thrown(where, self._phase, line, error)
        return printed(f"{where} is null: {error}" + (f" (line {line})" if line else ""))

    def _count_line(self) -> None:
        self._lines += 1
        if self._lines > MAX_LINES:
            raise Misuse(f"a script may write at most {MAX_LINES:,} lines")
