"""What a program has told of its step so far: progress as it comes, and in the end what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from executor_node.agents.command.failures import failure_of
from executor_node.secrets import NO_SECRETS, Secrets
from executor_node.texts import line_of, text_of
from executor_node.told import Progress, Result
from fanfold.anchors import Anchors
from fanfold.model.checks import MAX_IDENTIFIER, MAX_NAME, MAX_TOKENS
from fanfold.model.step import NO_USAGE, StepFailure, TextWritten, ToolFinished, TurnFinished, Usage

_UNNAMED = "tool"


class Report:
    """Takes what a program tells, in whatever form. Values of wrong types are left out: programs may write anything."""

    def __init__(
        self,
        tell: Callable[[Progress], None],
        folder: Path,
        *,
        max_bytes: int,
        stir: Callable[[], None] = lambda: None,
        secrets: Secrets = NO_SECRETS,
    ) -> None:
        """`max_bytes` bounds the message that is to be the output, `stir` is called for silent progress."""
        self.stir = stir
        self.secrets = secrets
        """What no failure tells."""
        self.session_id = ""
        """The program's own name for its session."""
        self.usage = NO_USAGE
        """The cost so far."""
        self.failure: StepFailure | None = None
        """Why the program failed, if it has said so."""
        self._tell = tell
        self._anchors = Anchors(folder)
        self._most = max_bytes + 1 if max_bytes else 0  # so that a larger one is not taken for a whole one
        self._result: tuple[Any] | None = None
        self._pieces: list[str] = []
        self._room = self._most
        self._turn = 0

    def session(self, session_id: object) -> None:
        """The program has named its session."""
        if isinstance(session_id, str) and (name := line_of(session_id)[:MAX_IDENTIFIER]):
            self.session_id = name

    def text(self, text: object) -> None:
        """A piece of a message was written."""
        if isinstance(text, str) and text:
            text = text_of(text)
            self._tell(TextWritten(text=text))
            if self._room > 0:
                self._pieces.append(text[: self._room])
                self._room -= len(text)

    def remark(self, text: str) -> None:
        """Text was written that is no part of a message."""
        self._tell(TextWritten(text=text_of(text)))

    def message(self, text: object) -> None:
        """A whole message was written; the last one is the output unless a result says otherwise."""
        if isinstance(text, str) and text:
            self._pieces = [text_of(text)[: self._most]]
            self._tell(TextWritten(text=self._pieces[0] + "\n"))

    def message_begins(self) -> None:
        """What is written from now on is another message."""
        self._pieces, self._room = [], self._most

    def tool(self, name: object, *, success: bool = True, detail: object = "") -> None:
        """A tool call has finished."""
        named = line_of(name)[:MAX_NAME] if isinstance(name, str) else ""
        told = line_of(detail) if isinstance(detail, str) else ""
        self._tell(ToolFinished(name=named or _UNNAMED, success=success, detail=told))

    def read(self, tool: object, source: object, lines: str = "") -> None:
        """A successful tool call has read something (C4)."""
        if isinstance(tool, str) and isinstance(source, str):
            self._anchors.observe(line_of(tool), text_of(source), lines)

    def turn(self, usage: Usage, number: int | None = None) -> None:
        """A round with the model has finished; `usage` is the cost so far. Rounds count from 1 unless told."""
        self._turn = self._turn + 1 if number is None else number
        self.usage = usage
        self._tell(TurnFinished(turn=self._turn, usage=usage))

    def result(self, value: object) -> None:
        """The result: text, or any other JSON value."""
        self._result = (value,)

    def failed(self, message: object, status: int | None = None) -> None:
        """The program says that it failed; `status` is that of HTTP when a provider's error was the cause."""
        if message is None:
            message = ""
        words = message if isinstance(message, str) else json.dumps(message)
        self.failure = failure_of(self.secrets.blotted(words), status)

    def outcome(self, written: str | None = None) -> Result:
        """What came of the program. Without a result it is all that was `written`, or else the last message."""
        output, structured_json = "".join(self._pieces) if written is None else written, None
        if self._result is not None:
            (value,) = self._result
            if isinstance(value, str):
                output = text_of(value)
            else:
                output = structured_json = text_of(json.dumps(value, ensure_ascii=False))
        return Result(output, structured_json, self.usage, self._anchors.collected, self.failure, self.session_id)


def tokens(*counts: object) -> int:
    """The sum of what is a count among these."""
    return min(MAX_TOKENS, sum(count for count in counts if type(count) is int and count > 0))
