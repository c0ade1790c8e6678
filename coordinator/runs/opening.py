"""Who asks for what."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from coordinator.scope import Scope
from fanfold.model.run import EventDetail


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Who asks for what: what a run is about besides its steps."""

    owner: str
    request_id: str = ""
    detail: EventDetail = EventDetail.OUTCOMES

    def scope(self, kind: str) -> Scope:
        """The scope of a new run."""
        return Scope(
            run_id=f"{kind}-{uuid.uuid4().hex}", owner=self.owner, progress=self.detail is EventDetail.PROGRESS
        )
