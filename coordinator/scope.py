"""For whom steps are run."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.waiting import Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The run that steps belong to, and whose it is. `progress` says whether anybody wants to hear of progress."""

    run_id: str
    owner: str
    progress: bool
    waiting: Waiting = field(default_factory=Waiting)
