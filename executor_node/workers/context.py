"""What an agent sees of its step; implements `fanfold.agent.StepContext`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from executor_node.secrets import Secrets
from executor_node.workers.frames import Message
from executor_node.workers.messages import Setup, ask_to_message, text_to_message, tool_to_message, turn_to_message
from executor_node.workspace import Workspace
from fanfold.anchors import Anchors
from fanfold.model.step import NO_USAGE, SourceAnchor, Usage


class Context:
    """The context of one step. May be used from several threads.

    `ask` puts a message `ask` on its way; only steps in shared workers have it. `assignment` is what the node's own
    code is told besides the spec.
    """

    __slots__ = (
        "_anchors",
        "_answer",
        "_ask",
        "_number",
        "_setup",
        "_tell",
        "_workspace",
        "assignment",
        "cancelled",
        "max_output_bytes",
        "max_tokens",
        "usage",
    )

    def __init__(
        self,
        number: int,
        setup: Setup,
        tell: Callable[[Message], None],
        *,
        max_tokens: int | None = None,
        max_output_bytes: int = 0,
        assignment: Any = None,
        ask: Callable[[Message], Awaitable[None]] | None = None,
    ) -> None:
        self._number = number
        self._setup = setup
        self._tell = tell
        self._ask = ask
        self._answer: asyncio.Future[str] | None = None
        self.assignment = assignment
        self._anchors: Anchors | None = None
        self._workspace: Workspace | None = None
        self.cancelled = False
        self.max_tokens = max_tokens
        self.max_output_bytes = max_output_bytes
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
    def secrets(self) -> Secrets:
        """What its failure is not to tell; looked at before it is cut to its length."""
        return Secrets.of(self._setup.environment)

    @property
    def source_anchors(self) -> tuple[SourceAnchor, ...]:
        """What was observed."""
        return self._anchors.collected if self._anchors else ()

    def tool_finished(self, name: str, *, success: bool = True, detail: str = "", seconds: float | None = None) -> None:
        """Tell that a tool call finished, and how long it took."""
        took = None if seconds is None else float(seconds)
        self._tell(tool_to_message(self._number, str(name), bool(success), str(detail), took))

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

    async def ask(self, what: str, text: str = "") -> str:
        """Ask the runtime something, one thing at a time, and wait for its answer."""
        assert self._ask is not None, "only steps in shared workers can ask"
        assert self._answer is None, "one question at a time"
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._answer = answer
        try:
            await self._ask(ask_to_message(self._number, what, text))
            return await answer
        finally:
            self._answer = None

    def answered(self, text: str) -> None:
        """The runtime has answered."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(text)

    def is_cancelled(self) -> bool:
        """Whether the step is being stopped."""
        return self.cancelled
