"""A pipeline, as a Python program runs it: its stages are functions of the program (C14, C15)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from fanfold.clients.coordinator import Bookmark, CoordinatorClient, Terms
from fanfold.clients.pipeline import PipelineShape
from fanfold.clients.run_call import RunCall
from fanfold.errors import InvalidArgument
from fanfold.model.pipeline import Stage, StageAnswer, StageContext, StageFailure, StageRequest
from fanfold.model.run import EventDetail, PipelineEvent, PipelineResult, RunEnded, RunEvent, RunStepEvent, StageFailed
from fanfold.model.step import AgentStepSpec
from fanfold.model.validation import json_text
from fanfold.sdk.run import MeshRun
from fanfold.sdk.servers import Servers
from fanfold.stages import MAX_CALLS, StageCalls

OnPipelineEvent = Callable[[PipelineEvent], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """Items, and the stages that each of them goes through; `stage_timeout` is in seconds."""

    items: Sequence[Any]
    stages: Sequence[Stage]
    stage_timeout: float


class PipelineRun(MeshRun[PipelineEvent, PipelineResult]):
    """A pipeline to be awaited or iterated."""

    def __init__(
        self,
        servers: Servers,
        plan: PipelinePlan,
        on_event: OnPipelineEvent | None,
        terms: Terms,
        *,
        reconnect_timeout: float = 0.0,
    ) -> None:
        super().__init__(servers, on_event, terms, reconnect_timeout=reconnect_timeout)
        self._items = plan.items
        self._plan = plan
        self._calls = StageCalls(plan.stages, plan.stage_timeout)
        self._texts: list[str] = []
        self._failures: list[StageFailed] = []

    def _check(self) -> int:
        if not isinstance(self._items, Sequence) or isinstance(self._items, str | bytes):
            raise InvalidArgument.of_field("items", f"must be a list of JSON values, not {type(self._items).__name__}")
        self._items = tuple(self._items)
        self._texts = [json_text(item, path=f"items[{index}]") for index, item in enumerate(self._items)]
        return len(self._texts)

    async def _batches(self, detail: EventDetail) -> AsyncGenerator[Sequence[PipelineEvent], None]:
        with self._calls:
            async with aclosing(super()._batches(detail)) as batches:
                async for events in batches:
                    yield events

    def _begin(self, detail: EventDetail, client: CoordinatorClient, bookmark: Bookmark) -> RunCall:
        shape = PipelineShape(
            items=self._texts,
            stages=len(self._plan.stages),
            stage_timeout=self._plan.stage_timeout,
            most_requests=MAX_CALLS,
        )
        return client.pipeline(shape, self._answer, self._terms, detail=detail, bookmark=bookmark)

    def _answer(self, request: StageRequest, answer: Callable[[StageAnswer], None]) -> None:
        """Have the stage called; its answer is told once it is there."""
        context = StageContext(self._items[request.index], request.previous, request.index, request.stage)
        self._calls.begin(context).add_done_callback(partial(_settle, answer))

    def _keep(self, run_event: RunEvent) -> None:
        super()._keep(run_event)
        if isinstance(run_event, StageFailed):
            self._failures.append(run_event)

    def _told(self, run_event: RunEvent) -> PipelineEvent | None:
        return run_event if isinstance(run_event, RunStepEvent | StageFailed) else None

    def _result_of(self, ended: RunEnded) -> PipelineResult:
        return PipelineResult(self._outcomes, ended.run.budget, self._failures, ended.error)


def _settle(answer: Callable[[StageAnswer], None], called: asyncio.Future[AgentStepSpec | None]) -> None:
    if not called.cancelled():
        failure = called.exception()
        answer(failure if isinstance(failure, StageFailure) else called.result())
