"""What an agent sees of its step; implements `fanfold.agent.StepContext`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from executor_node.workers.frames import Message
from executor_node.workers.messages import Setup, text_to_message, tool_to_message, turn_to_message
from executor_node.workspace import Workspace
from fanfold.anchors import Anchors
from fanfold.model.step import NO_USAGE, SourceAnchor, Usage


class Context:
    """The context of one step. May be used from several threads."""

    __slots__ = ("_anchors", "_number", "_setup", "_tell", "_workspace", "cancelled", "max_tokens", "usage")

    def __init__(
        self, number: int, setup: Setup, tell: Callable[[Message], None], *, max_tokens: int | None = None
    ) -> None:
        self._number = number
        self._setup = setup
        self._tell = tell
        self._anchors: Anchors | None = None
        self._workspace: Workspace | None = None
        self.cancelled = False
        self.max_tokens = max_tokens
        self.usage = NO_USAGE
        """The cost as last told, which is all that is known of a step that fails."""

    @property
    def workspace(self) -> Workspace:
        """The step's files."""
        if self._workspace is None:
            self._workspace = Workspace(
                Path(self._setup.workspace),
                self.observe,
                max_file_bytes=self._setup.file_bytes,
                is_stopped=self.is_cancelled,
            )
        return self._workspace

    @property
    def source_anchors(self) -> tuple[SourceAnchor, ...]:
        """What was observed."""
        return self._anchors.collected if self._anchors else ()

    def tool_finished(self, name: str, *, success: bool = True, detail: str = "") -> None:
        """Tell that a tool call finished."""
        self._tell(tool_to_message(self._number, str(name), bool(success), str(detail)))

    def turn_finished(self, turn: int, usage: Usage = NO_USAGE) -> None:
        """Tell that a model round finished.

        Raises:
            ValueError, TypeError: what is told is no count.
            asyncio.CancelledError: it has spent more than it may. The runtime stops the step too, but later: the agent
                could have begun another call by then.
        """
        message = turn_to_message(self._number, turn, usage)
        self.usage = usage
        self._tell(message)
        if self.max_tokens is not None and usage.tokens > self.max_tokens:
            self.cancelled = True
            raise asyncio.CancelledError

    def write_text(self, text: str) -> None:
        """Tell text as it is written."""
        if text:
            self._tell(text_to_message(self._number, str(text)))

    def observe(self, tool: str, url_or_path: str, lines: str = "") -> None:
        """Record a source anchor."""
        if self._anchors is None:
            self._anchors = Anchors(Path(self._setup.workspace))
        self._anchors.observe(tool, url_or_path, lines)

    def is_cancelled(self) -> bool:
        """Whether the step is being stopped."""
        return self.cancelled
