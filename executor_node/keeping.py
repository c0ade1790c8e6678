"""What the node keeps of steps that have ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How long endings are kept for whoever does not come back for them, in seconds, and how much of them.

    `characters` counts output, for each coordinator, and for all direct callers together.
    """

    seconds: float = 600.0
    characters: int = 256 * 2**20


DEFAULT_KEEPING = Keeping()
