"""What an agent tells: its progress while it runs, and at its end its result."""

from __future__ import annotations

from dataclasses import dataclass, replace

from executor_node.texts import cut, is_longer
from fanfold.model.step import (
    NO_USAGE,
    FailureCode,
    SourceAnchor,
    StepFailure,
    TextWritten,
    ToolFinished,
    TurnFinished,
    Usage,
)

MAX_TEXT = 16 * 2**10
"""Characters of text told at once; of more, the last ones are."""

Progress = ToolFinished | TurnFinished | TextWritten
"""What an agent can tell while it runs."""


@dataclass(slots=True)
class Result:
    """What came of an agent's run, before it is made the step's outcome."""

    output: str = ""
    structured_json: str | None = None
    """The structured value if the agent gave one, as JSON text that nobody has read yet."""
    usage: Usage = NO_USAGE
    source_anchors: tuple[SourceAnchor, ...] = ()
    failure: StepFailure | None = None
    session_id: str = ""
    """The agent's own name for its session, if it has told one."""

    @classmethod
    def of_failure(cls, code: FailureCode, message: str, *, retryable: bool = False) -> Result:
        """The result of a run that came to nothing."""
        return cls(failure=StepFailure(code=code, message=message, retryable=retryable))

    def within(self, max_bytes: int) -> Result:
        """The same, or PAYLOAD_TOO_LARGE with what fits of the output if one of its texts is too large (F11)."""
        if is_longer(self.output, max_bytes):
            return self.too_large("output", max_bytes)
        if self.structured_json is not None and is_longer(self.structured_json, max_bytes):
            return self.too_large("structured value", max_bytes)
        return self

    def too_large(self, what: str, max_bytes: int) -> Result:
        """The same, when `what` of it is larger than allowed."""
        message = f"the agent's {what} is larger than {max_bytes:,} bytes"
        failure = StepFailure(code=FailureCode.PAYLOAD_TOO_LARGE, message=message)
        return replace(self, output=cut(self.output, max_bytes), structured_json=None, failure=failure)
