"""The protocol of an engine: a text becomes a process that can do nothing but exchange frames.

What a process says, after `loaded`:

    call{id, line, prompt, options}       agent() was called; `answer{id, value}` is awaited
    items{count, line}                    a combinator was given so many
    phase{title}, log{message}
    lost{where, item, stage, error, line} an item of a combinator became null, as its function threw
    fatal{message, line}                  the script is written wrong; the run is to end
    idle{delivered}                       all that came of the frames that were delivered is done
    done{kind, value | error, line}       the script has ended: value_ok, throw, value, stalled or engine

None of it is to be believed: a script may have taken the process over. What is said to it is `run`, once, and `answer`;
each has `now`, the time that the script sees, in milliseconds, and `spent`, the tokens that its run has spent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from coordinator.scripts.engine.frames import Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptStart:
    """What a script starts from; the same gives the same, as far as the answers are the same (C29)."""

    source: str
    args: Any
    seed: tuple[int, int, int, int]
    """Four numbers of 32 bits that `Math.random` begins with."""
    now: int
    """Milliseconds since 1970."""
    budget: int | None = None


class ScriptSyntaxError(Exception):
    """The text is no script; `line` and `column` count from 1 and are 0 if they are not known."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


class EngineFailed(Exception):
    """The engine could not start a process, or a process went wrong: it is to be killed."""


class ScriptProcess(Protocol):
    """The process of one script, which has been compiled and waits for `run`."""

    async def receive(self) -> Sequence[Frame]:
        """What it says next; nothing at its end. Raises EngineFailed for what no prelude would say."""
        ...

    async def deliver(self, frame: Frame) -> None:
        """Say something to it; frames arrive in the order of these calls. One that has ended takes it in silence."""
        ...

    def kill(self) -> None:
        """End it, whatever it does. Idempotent."""
        ...

    async def closed(self) -> None:
        """Wait until it is gone. It must have been killed, or have ended."""
        ...


class ScriptEngine(Protocol):
    """Starts scripts."""

    async def start(self, start: ScriptStart) -> ScriptProcess:
        """A process in which the script is compiled, and has not begun.

        Raises:
            ScriptSyntaxError: the text is no script.
            EngineFailed: no process can be started.
        """
        ...
