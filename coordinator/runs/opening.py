"""Who asks for what."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from coordinator.budget import TokenBudget
from coordinator.scope import Scope
from coordinator.tracing import RunTrace
from fanfold.model.run import EventDetail
from fanfold.model.trace import TraceContext
from fanfold.tracing import NO_TRACER, Tracer


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Who asks for what: what a run is about besides its steps."""

    owner: str
    request_id: str = ""
    detail: EventDetail = EventDetail.OUTCOMES
    takes_parts: bool = False
    """Whether the caller takes large outcomes in parts."""
    workflow_id: str = ""
    """Makes the run resumable under this name (C16)."""
    budget_tokens: int | None = None
    """Tokens that the run may spend (C13)."""
    from_sequence: int = 0
    """First event to be told."""
    from_run: str = ""
    """The run that this number is of; empty for whichever it leads to."""
    total_steps: int | None = None
    """How many steps the caller says that there are."""
    attached: bool = True
    """Whether the run is its caller's, or goes on without one."""
    as_before: bool = False
    """Whether to run what the workflow's last run was asked for."""
    trace: TraceContext | None = None
    """What the caller has the run be part of in a distributed trace."""

    def scope(self, kind: str, tracer: Tracer = NO_TRACER) -> Scope:
        """The scope of a new run."""
        return Scope(
            run_id=f"{kind}-{uuid.uuid4().hex}",
            owner=self.owner,
            progress=self.detail is EventDetail.PROGRESS,
            budget=None if self.budget_tokens is None else TokenBudget(self.budget_tokens),
            trace=RunTrace(tracer, self.trace),
        )
