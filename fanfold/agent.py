"""What the author of a Python agent imports.

An agent is a function `(spec, context) -> result`, plain or async, that a node's agent file names as
`entry: module:function`. It returns its final text, or an `AgentResult`, or any other JSON value (which becomes the
structured value, and its JSON text the output). It raises `AgentFailed` to say that it could not do what was asked;
any other exception ends the step as CRASHED.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fanfold.model.step import NO_USAGE, FailureCode, Usage

TOLD_CODES = frozenset(
    {
        FailureCode.AGENT_FAILED,
        FailureCode.BUDGET_EXHAUSTED,
        FailureCode.CRASHED,
        FailureCode.PAYLOAD_TOO_LARGE,
        FailureCode.QUOTA_EXHAUSTED,
    }
)
"""The causes that are an agent's to tell (C3)."""


class AgentFailed(Exception):
    """The agent could not do what was asked; `retryable` says whether another attempt may.

    `code` tells causes apart that have codes of their own: QUOTA_EXHAUSTED, when the model's provider said no for good,
    and BUDGET_EXHAUSTED, when another call would cost more than the step may. `output` is how far it got.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        code: FailureCode = FailureCode.AGENT_FAILED,
        output: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retryable = retryable
        self.code = code
        self.output = output


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """A result with more than text: a structured value, and what model calls cost."""

    output: str
    structured: Any = None
    usage: Usage = NO_USAGE


class WorkspaceFiles(Protocol):
    """The step's files. Paths are relative to the workspace; none leads out of it, not even through a link.

    What a successful call touched becomes a source anchor of the step under the name of the tool (C4).
    All methods raise AgentFailed with a message for people: no such file, outside the workspace, not text, too large.
    """

    root: Path

    def resolve(self, path: str) -> Path:
        """The absolute path of an existing file or folder. Leaves no anchor."""
        ...

    def read_text(self, path: str, *, tool: str = "") -> str:
        """The text of a UTF-8 file, at most the configured size. Leaves no anchor when no tool is named."""
        ...

    def write_text(self, path: str, text: str, *, create: bool = False) -> None:
        """Write a UTF-8 file as a whole, a new one with `create`, else one that exists. Leaves no anchor.

        Nothing within `.git` is written. In a workspace that is shared, other steps see it.
        """
        ...

    def glob(self, pattern: str, *, tool: str) -> list[str]:
        """Relative paths of the files that match, sorted; hidden folders are left out."""
        ...

    def walk(self, pattern: str = "**/*") -> Iterator[tuple[str, Path]]:
        """Each matching file as relative and absolute path, sorted. Leaves no anchors."""
        ...


class StepContext(Protocol):
    """What an agent sees of its step. Every call also counts as progress (C6, C11)."""

    @property
    def workspace(self) -> WorkspaceFiles:
        """The step's files."""
        ...

    max_tokens: int | None
    """Most model tokens that the step may spend, input and output together; None is no bound (C6, C13)."""

    def tool_finished(self, name: str, *, success: bool = True, detail: str = "") -> None:
        """Tell that a tool call finished; `detail` is one line."""
        ...

    def turn_finished(self, turn: int, usage: Usage = NO_USAGE) -> None:
        """Tell that a model round finished; `turn` counts from 1, `usage` is the cost so far.

        Raises:
            asyncio.CancelledError: the usage is more than `max_tokens`. The step is stopped, and must cost no more.
        """
        ...

    def write_text(self, text: str) -> None:
        """Tell text as it is written. The result is what the agent returns, not what was told."""
        ...

    def observe(self, tool: str, url_or_path: str, lines: str = "") -> None:
        """Record a source anchor for a successful call of the agent's own tool (C4)."""
        ...

    def is_cancelled(self) -> bool:
        """Whether the step is being stopped; a plain function that loops should ask now and then."""
        ...
