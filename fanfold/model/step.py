"""What moves over the wire about one step: spec, outcome and events (C1 to C6, C11).

The types are frozen dataclasses. Building one checks nothing, which keeps the hot path cheap; whatever comes from
outside passes `fanfold.model.validation` first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from annotated_types import Ge, Le, MaxLen

from fanfold.model.checks import (
    MAX_TOKENS,
    Count,
    Flag,
    Identifier,
    Label,
    Line,
    Name,
    OptionalIdentifier,
    RequiredText,
    Seconds,
    Text,
    Tokens,
)
from fanfold.model.light import light

DEFAULT_MAX_STEPS = 50
DEFAULT_MAX_ATTEMPTS = 2
MAX_ANCHORS = 64
MAX_ANCHOR_BYTES = 4096

FORBID_EXTRA: dict[str, Any] = {"extra": "forbid", "revalidate_instances": "always"}
"""How pydantic reads the types that callers write: unknown fields are refused by name (C5)."""


class _Fields:
    """Lets a type be read like a mapping too: `outcome["success"]` is `outcome.success` (C12)."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        if name in self.__dataclass_fields__ and name != "unknown_fields":  # type: ignore[attr-defined]
            return getattr(self, name)
        raise KeyError(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPolicy(_Fields):
    """Bounds and retries of one step (C6). Durations in seconds, whole milliseconds."""

    __pydantic_config__ = FORBID_EXTRA

    timeout: Seconds | None = None
    no_progress_timeout: Seconds | None = None
    max_tokens: Tokens | None = None
    max_attempts: Annotated[Count, Ge(1), Le(100)] = DEFAULT_MAX_ATTEMPTS
    node_labels: Annotated[Mapping[Label, Label], MaxLen(32)] = field(default_factory=dict)


DEFAULT_POLICY = StepPolicy()


@light
class AgentStepSpec(_Fields):
    """What to run, never where (C1)."""

    __pydantic_config__ = FORBID_EXTRA

    task_id: Identifier
    agent: Name
    description: Line
    prompt: RequiredText
    max_steps: Annotated[Count, Ge(1), Le(10_000)] = DEFAULT_MAX_STEPS
    parent_session_id: OptionalIdentifier = ""
    output_schema: Any = None
    policy: StepPolicy = field(default_factory=lambda: DEFAULT_POLICY)
    unknown_fields: bytes = b""
    """Protobuf fields of a newer peer, kept for whoever is asked next (C5). Not part of the JSON form."""


class FailureCode(StrEnum):
    """The closed set of causes (C3)."""

    AGENT_FAILED = "AGENT_FAILED"
    AGENT_UNKNOWN = "AGENT_UNKNOWN"
    UNPLACEABLE = "UNPLACEABLE"
    OUTPUT_INVALID = "OUTPUT_INVALID"
    TIMED_OUT = "TIMED_OUT"
    STALLED = "STALLED"
    CANCELLED = "CANCELLED"
    CRASHED = "CRASHED"
    NODE_LOST = "NODE_LOST"
    BUDGET_EXHAUSTED = "BUDGET_EXHAUSTED"
    QUOTA_EXHAUSTED = "QUOTA_EXHAUSTED"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    INTERNAL = "INTERNAL"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailure(_Fields):
    """Why a step failed (C2)."""

    __pydantic_config__ = FORBID_EXTRA

    code: FailureCode
    message: Text
    retryable: Flag = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage(_Fields):
    """What model calls cost, in tokens and calls."""

    __pydantic_config__ = FORBID_EXTRA

    input_tokens: Tokens = 0
    output_tokens: Tokens = 0
    requests: Tokens = 0

    @property
    def tokens(self) -> int:
        """What counts against budgets and caps: all of them (C13)."""
        return self.input_tokens + self.output_tokens

    def since(self, before: Usage) -> Usage:
        """What was spent since so much was."""
        return Usage(
            input_tokens=max(0, self.input_tokens - before.input_tokens),
            output_tokens=max(0, self.output_tokens - before.output_tokens),
            requests=max(0, self.requests - before.requests),
        )

    def __add__(self, other: Usage) -> Usage:
        """What both cost together, up to the largest number that can be told."""
        if other is NO_USAGE:
            return self
        if self is NO_USAGE:
            return other
        return Usage(
            input_tokens=min(MAX_TOKENS, self.input_tokens + other.input_tokens),
            output_tokens=min(MAX_TOKENS, self.output_tokens + other.output_tokens),
            requests=min(MAX_TOKENS, self.requests + other.requests),
        )


NO_USAGE = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAnchor(_Fields):
    """A place the step read from (C4). `lines` is "3" or "3-17", or empty for the whole."""

    __pydantic_config__ = FORBID_EXTRA

    tool: Name
    url_or_path: Annotated[str, MaxLen(MAX_ANCHOR_BYTES)]
    lines: Label = ""


class _Relayed:
    """Keeps the event of a step's end as it came in beside what that says, so that it can be passed on as it is.

    It is no field: what `replace` makes of an outcome says something else, and did not come in.
    """

    __slots__ = ("_encoded_end",)

    @property
    def encoded_end(self) -> bytes:
        """The encoded event, whose task id and time are the outcome's too; empty if it was not kept."""
        return getattr(self, "_encoded_end", b"")

    def came_in(self, encoded_end: bytes) -> None:
        """Keep the event that the outcome has just been made of."""
        self._encoded_end = encoded_end


@light
class StepOutcome(_Fields, _Relayed):
    """What came of a step and at what cost (C2). `failure` is set exactly when `success` is false."""

    __pydantic_config__ = FORBID_EXTRA

    task_id: Identifier
    session_id: OptionalIdentifier = ""
    agent: Name
    output: Text = ""
    success: Flag
    structured: Any = None
    source_anchors: Annotated[tuple[SourceAnchor, ...], MaxLen(MAX_ANCHORS)] = ()
    failure: StepFailure | None = None
    usage: Usage = NO_USAGE
    attempts: Count = 0
    node: Label = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    agent_session_id: OptionalIdentifier = ""
    """The agent's own name for its session, if it has told one; `session_id` is the mesh's."""
    unknown_fields: bytes = b""
    """Protobuf fields of a newer peer, kept for whoever is asked next (C5). Not part of the JSON form."""


@light
class StepStarted:
    """The step's first attempt began; `node` is empty when it ends without having been placed."""

    task_id: str
    time: datetime
    session_id: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished:
    """A tool call finished."""

    name: str
    success: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished:
    """A model round finished; `turn` counts from 1, `usage` is the cost so far."""

    turn: int
    usage: Usage = NO_USAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class TextWritten:
    """Text, as the agent writes it."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """A further attempt began; the first one is told by `StepStarted`."""

    attempt: int
    node: str
    cause: StepFailure


Progress = ToolFinished | TurnFinished | TextWritten | AttemptStarted


@light
class StepProgressed:
    """The step is getting on."""

    task_id: str
    time: datetime
    progress: Progress


@light
class StepEnded:
    """The step ended; nothing comes after it."""

    task_id: str
    time: datetime
    outcome: StepOutcome

    @property
    def start(self) -> StepStarted:
        """The step's start, as the outcome tells it."""
        outcome = self.outcome
        time = outcome.started_at or self.time
        return StepStarted(task_id=self.task_id, time=time, session_id=outcome.session_id, node=outcome.node)


StepEvent = StepStarted | StepProgressed | StepEnded
"""One event in a step's life: one `StepStarted`, any number of `StepProgressed`, one `StepEnded` (C11)."""
