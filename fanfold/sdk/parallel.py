"""A fan-out, as a Python program runs it (C12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fanfold.clients.coordinator import CoordinatorClient, Terms
from fanfold.clients.run_call import RunCall
from fanfold.errors import Unavailable
from fanfold.model.run import EventDetail, ParallelResult, RunEnded, RunEvent, RunStepEvent
from fanfold.model.step import AgentStepSpec, StepEvent
from fanfold.model.validation import parse_specs, require_json_schemas
from fanfold.sdk.run import MeshRun
from fanfold.sdk.servers import Servers
from fanfold.sdk.streams import Bookmark

Spec = AgentStepSpec | Mapping[str, Any]
OnStepEvent = Callable[[StepEvent], None]


class ParallelRun(MeshRun[StepEvent, ParallelResult]):
    """A fan-out to be awaited or iterated."""

    def __init__(
        self,
        servers: Servers,
        specs: Sequence[Spec],
        on_event: OnStepEvent | None,
        terms: Terms,
        *,
        reconnect_timeout: float = 0.0,
    ) -> None:
        super().__init__(servers, on_event, reconnect_timeout=reconnect_timeout)
        self._given = specs
        self._specs: list[AgentStepSpec] = []
        self._terms = terms

    def _check(self) -> int:
        self._specs = parse_specs(self._given)
        require_json_schemas(self._specs)
        return len(self._specs)

    def _begin(self, detail: EventDetail, client: CoordinatorClient, bookmark: Bookmark) -> RunCall:
        return client.parallel(self._specs, self._terms, detail=detail, from_sequence=bookmark.sequence)

    def _told(self, run_event: RunEvent) -> StepEvent | None:
        return run_event.event if isinstance(run_event, RunStepEvent) else None

    def _result_of(self, ended: RunEnded) -> ParallelResult:
        missing = self._outcomes.count(None)
        if missing:
            raise Unavailable(f"the coordinator ended the run without {missing} of {len(self._outcomes)} outcomes")
        return ParallelResult([outcome for outcome in self._outcomes if outcome is not None], ended.run.budget)
