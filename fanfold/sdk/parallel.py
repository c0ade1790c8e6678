"""A fan-out, as a Python program runs it (C12, C16)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from fanfold.clients.coordinator import Bookmark, CoordinatorClient, Terms
from fanfold.clients.run_call import RunCall
from fanfold.errors import Unavailable
from fanfold.model.run import EventDetail, ParallelResult, RunEnded, RunEvent, RunStarted, RunStepEvent
from fanfold.model.step import AgentStepSpec, StepEvent
from fanfold.model.validation import parse_specs, require_json_schemas
from fanfold.sdk.run import MeshRun
from fanfold.sdk.servers import Servers

Spec = AgentStepSpec | Mapping[str, Any]
OnStepEvent = Callable[[StepEvent], None]


class ParallelRun(MeshRun[StepEvent, ParallelResult]):
    """A fan-out to be awaited or iterated; with `as_before`, of the steps that its workflow was last asked for."""

    def __init__(
        self,
        servers: Servers,
        specs: Sequence[Spec],
        on_event: OnStepEvent | None,
        terms: Terms,
        *,
        as_before: bool = False,
        reconnect_timeout: float = 0.0,
    ) -> None:
        super().__init__(servers, on_event, terms, reconnect_timeout=reconnect_timeout)
        self._given = specs
        self._as_before = as_before
        self._specs: list[AgentStepSpec] = []
        self._recalled: dict[str, None] = {}
        self._known: frozenset[int] = frozenset()

    @property
    def recalled(self) -> Set[str]:
        """Task ids of the steps that were answered from their records so far, and not run again (C16)."""
        return self._recalled.keys()

    def _check(self) -> int:
        self._specs = parse_specs(self._given)
        require_json_schemas(self._specs)
        return len(self._specs)

    def _begin(self, detail: EventDetail, client: CoordinatorClient, bookmark: Bookmark) -> RunCall:
        if self._as_before:
            return client.parallel_as_before(self._terms, detail=detail, bookmark=bookmark)
        return client.parallel(self._specs, self._terms, detail=detail, bookmark=bookmark)

    def _keep(self, run_event: RunEvent) -> None:
        if isinstance(run_event, RunStarted):
            if not self.run_id and self._as_before:
                self._outcomes = [None] * run_event.total_steps
            # A run that was cancelled while the mesh was out of reach goes on as another one.
            self._known = frozenset(
                index for index, outcome in enumerate(self._outcomes) if outcome is not None and outcome.success
            )
        elif isinstance(run_event, RunStepEvent) and run_event.recalled and run_event.index not in self._known:
            self._recalled[run_event.event.task_id] = None
        super()._keep(run_event)

    def _told(self, run_event: RunEvent) -> StepEvent | None:
        if isinstance(run_event, RunStepEvent) and not (run_event.recalled and run_event.index in self._known):
            return run_event.event
        return None

    def _result_of(self, ended: RunEnded) -> ParallelResult:
        missing = self._outcomes.count(None)
        if missing:
            raise Unavailable(f"the coordinator ended the run without {missing} of {len(self._outcomes)} outcomes")
        outcomes = [outcome for outcome in self._outcomes if outcome is not None]
        return ParallelResult(outcomes, ended.run.budget, ended.error)
