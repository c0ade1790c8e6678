"""What an agent file says of a program: what it gets, what it writes, and where it works.

Worker processes import this; it stays light.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from annotated_types import MaxLen

from fanfold.model.checks import Exact, Flag, Must
from fanfold.model.step import FORBID_EXTRA


class PromptBy(StrEnum):
    """How a program gets the prompt: on its standard input, as one more argument, or in the whole spec as JSON."""

    ARGUMENT = "argument"
    STDIN = "stdin"
    JSON = "json"


class OutputForm(StrEnum):
    """What a program writes to its standard output: text, one JSON value, or one JSON value a line."""

    TEXT = "text"
    JSON = "json"
    JSON_LINES = "json-lines"


class WorkspaceUse(StrEnum):
    """How a step sees the node's workspace: as it is, as a copy of its own, or as a git worktree of its own."""

    SHARED = "shared"
    COPY = "copy"
    WORKTREE = "worktree"


class Keep(StrEnum):
    """Whether a step's own folder is kept when the step has ended."""

    NEVER = "never"
    ON_FAILURE = "on-failure"


class Preset(StrEnum):
    """Coding agents of the command line whose arguments and output are known."""

    CLAUDE_CODE = "claude-code"
    CODEX = "codex"
    GEMINI = "gemini"
    OPENCODE = "opencode"


class Access(StrEnum):
    """What a coding agent may do unasked: read, also change files of its folder, or anything."""

    READ = "read"
    WRITE = "write"
    FULL = "full"


_PLACE = re.compile(r"[^.\s]+(?:\.[^.\s]+)*")

Place = Annotated[
    str,
    Exact(),
    MaxLen(256),
    Must("be keys joined by dots, as `usage.tokens`", lambda text: bool(_PLACE.fullmatch(text))),
]
"""Where in a JSON value something stands: keys, and numbers of list items from 0, joined by dots."""

Told = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRule:
    """What a program's JSON value means, if it has certain values in certain places: where in it what stands."""

    __pydantic_config__ = FORBID_EXTRA

    when: Annotated[Mapping[Place, Told], MaxLen(16)] = field(default_factory=dict)
    """What it must be like; nothing fits every value."""
    text: Place | None = None
    """Text, as it is written."""
    tool: Place | None = None
    """Name of a tool whose call has finished."""
    success: Place | None = None
    """Whether that call succeeded; without it, it did."""
    detail: Place | None = None
    source: Place | None = None
    """Path or URL that the call read, which becomes a source anchor."""
    lines: Place | None = None
    input_tokens: Place | None = None
    output_tokens: Place | None = None
    requests: Place | None = None
    adds: Flag = False
    """Whether the tokens are what one call has cost, and not the cost so far."""
    result: Place | None = None
    """The result: text, or any other JSON value."""
    session: Place | None = None
    """The program's own name for its session."""
    error: Place | None = None
    """Why it failed; null, false and empty text are no error."""
