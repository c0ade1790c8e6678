"""How much of everything a script may use; the coordinator counts (C25, C30)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

MAX_LINES = 10_000
"""Lines that a script may tell: logs, phases and items that became null."""

MAX_ANSWER_BYTES = 2 * 2**20
"""Bytes of JSON that one answer may have: larger ones do not fit into a script's heap several times."""

MAX_VALUE_BYTES = 2**20
"""Bytes of JSON that a script may return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptLimits:
    """What the coordinator is configured with."""

    max_total_agents: int = 1000
    """Most agent() calls of a run; a request may ask for fewer (C25)."""
    items: int = 4096
    """Most items of one parallel() or pipeline()."""
    turn_seconds: float = 10.0
    """Longest that a script may compute without waiting for an answer."""
    default_agent: str = ""
    """The agent of a call that names none; empty if there is none."""

    def lowered(self, max_total_agents: int) -> Self:
        """The same with a lower cap."""
        return replace(self, max_total_agents=min(max_total_agents, self.max_total_agents))
