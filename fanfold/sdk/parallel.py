"""A fan-out, as a Python program runs it (C12)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from fanfold.clients.coordinator import CoordinatorClient
from fanfold.errors import Unavailable
from fanfold.model.run import EventDetail, ParallelResult, RunEnded, RunEvent, RunStepEvent
from fanfold.model.step import AgentStepSpec, StepEvent
from fanfold.model.validation import parse_specs, require_json_schemas
from fanfold.sdk.run import MeshRun

Spec = AgentStepSpec | Mapping[str, Any]
OnStepEvent = Callable[[StepEvent], None]


class ParallelRun(MeshRun[StepEvent, ParallelResult]):
    """A fan-out to be awaited or iterated."""

    def __init__(
        self,
        client: CoordinatorClient,
        specs: Sequence[Spec],
        on_event: OnStepEvent | None,
        request_id: str,
    ) -> None:
        super().__init__(on_event)
        self._client = client
        self._given = specs
        self._specs: list[AgentStepSpec] = []
        self._request_id = request_id

    def _check(self) -> int:
        self._specs = parse_specs(self._given)
        require_json_schemas(self._specs)
        return len(self._specs)

    def _run_events(self, detail: EventDetail) -> AsyncGenerator[RunEvent, None]:
        return self._client.parallel(self._specs, detail=detail, request_id=self._request_id)

    def _told(self, run_event: RunEvent) -> StepEvent | None:
        return run_event.event if isinstance(run_event, RunStepEvent) else None

    def _result_of(self, ended: RunEnded) -> ParallelResult:
        missing = self._outcomes.count(None)
        if missing:
            raise Unavailable(f"the coordinator ended the run without {missing} of {len(self._outcomes)} outcomes")
        return ParallelResult([outcome for outcome in self._outcomes if outcome is not None], ended.run.budget)
