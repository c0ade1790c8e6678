"""Workflow scripts: what is asked for, and what comes of it (C21, C22, C26, C28)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from annotated_types import Ge, Le, MaxLen

from fanfold.model.checks import Count, Exact, Label, Line, Must, Name, Tokens
from fanfold.model.step import FORBID_EXTRA, StepFailure, StepOutcome

MAX_PHASES = 100
MAX_TITLE = 256
MAX_WORDS = 4096
MAX_LINEAGE = 8
"""How many names deep the parent of a run may be."""

MAX_FAILURES = 1000
"""How many failures a result tells."""

_KEBAB = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")

KebabName = Annotated[
    str, Exact(), MaxLen(128), Must("be in kebab-case, as release-audit", lambda text: bool(_KEBAB.fullmatch(text)))
]
Title = Annotated[Line, MaxLen(MAX_TITLE)]
Words = Annotated[str, Exact(), MaxLen(MAX_WORDS)]
RequiredWords = Annotated[Words, Must("not be empty", bool)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptPhase:
    """One phase of a script, for display only."""

    __pydantic_config__ = FORBID_EXTRA

    title: Title
    detail: Words = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptMeta:
    """What a script says of itself (C22). Its name is also its durable key."""

    __pydantic_config__ = FORBID_EXTRA

    name: KebabName
    description: RequiredWords
    when_to_use: Words = ""
    phases: Annotated[tuple[ScriptPhase, ...], MaxLen(MAX_PHASES)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A workflow script that is asked for, and what it may see (C21, C25)."""

    source: str
    """JavaScript: the body of an async function, which ends with `return <json value>`."""
    meta: ScriptMeta
    parent: str
    """The session that the run belongs to: a path within the caller's principal, or below it if it begins with "./"."""
    args: Any = None
    """A JSON value."""
    provider: str = ""
    """The executor pool that serves the run's agents; empty is the default."""
    max_total_agents: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """What a script may say to `agent()` besides the prompt (C23)."""

    __pydantic_config__ = FORBID_EXTRA

    agent: Name | None = None
    label: Title | None = None
    phase: Title | None = None
    description: Line | None = None
    schema: Any = None
    max_steps: Annotated[Count, Ge(1), Le(10_000)] | None = None
    max_tokens: Tokens | None = None
    timeout_ms: Annotated[Count, Ge(1), Le(7 * 24 * 3_600_000)] | None = None
    node_labels: Annotated[Mapping[Label, Label], MaxLen(32)] = field(default_factory=dict)


class StopReason(StrEnum):
    """Why a script stopped."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFailure:
    """The cause of one null that a script saw (C24, F12).

    `call` is the number of the agent() call, from 1; 0 for a function of the script that threw, which `label` names.
    """

    label: str
    failure: StepFailure
    call: int = 0
    phase: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptResult:
    """What came of a script (C26). `value` is a JSON value, and only set when it completed; so is `error` otherwise."""

    stop_reason: StopReason
    value: Any = None
    error: str = ""
    agents_started: int = 0
    failures: tuple[AgentFailure, ...] = ()


class ScriptEventKind(StrEnum):
    """The six kinds (C28)."""

    START = "start"
    PHASE = "phase"
    LOG = "log"
    AGENT_START = "agent_start"
    AGENT_END = "agent_end"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptEvent:
    """One event in a script's life, as its observers are told it (C28).

    `call`, `label` and `phase` are of an agent() call, `phase` also of a phase, `message` of a log line; `outcome` is
    there at an agent's end, and `result`, without its value, at the script's.
    """

    kind: ScriptEventKind
    run_id: str
    meta: ScriptMeta
    sequence: int
    time: datetime
    call: int = 0
    label: str = ""
    phase: str = ""
    message: str = ""
    outcome: StepOutcome | None = None
    result: ScriptResult | None = None
