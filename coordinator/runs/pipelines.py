"""A pipeline as a run: items that are known by their hashes, stages that the run's caller answers for (C14)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from coordinator.combinators.pipeline import chains
from coordinator.combinators.runner import StepKey, StepRunner
from coordinator.runs.checks import RequestChecks
from coordinator.runs.history import History
from coordinator.runs.load import Load
from coordinator.runs.questions import Questions
from coordinator.runs.told import Told
from coordinator.runs.work import Listener, NoScript
from fanfold.errors import FanfoldError
from fanfold.model.pipeline import StageFailure, StageRequest
from fanfold.model.run import RunKind
from fanfold.model.step import AgentStepSpec, StepOutcome
from fanfold.parts import byte_size


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRequest:
    """What a pipeline is asked for.

    `item_hashes` has the hash of each item, which is all that is kept of it (C7). `stage_timeout` is in seconds, and
    `most_requests` how many stage requests the caller wants at once.
    """

    item_hashes: Sequence[str]
    stages: int
    stage_timeout: float
    most_requests: int


class PipelineSource(Protocol):
    """A pipeline's events and stage requests for one caller."""

    async def read(self) -> Sequence[Told | StageRequest]:
        """The next ones, at least one; none at the end. Each request is told to `questions` as sent."""
        ...


@dataclass(frozen=True, slots=True)
class PipelineCall:
    """A pipeline and its caller: what it is told, how it answers, and that it answers no more, and why."""

    source: PipelineSource
    questions: Questions
    hang_up: Callable[[str], None]


class PipelineWork(NoScript):
    """Implements `Work`: a pipeline, whose stages are asked through `questions`."""

    kind = RunKind.PIPELINE

    def __init__(self, request: PipelineRequest, questions: Questions, checks: RequestChecks, owner: str) -> None:
        self._request = request
        self.questions = questions
        self._checks = checks
        self._owner = owner
        self._asked_for = 0
        self._load = Load(checks.run_bytes)

    @property
    def total(self) -> int:
        """Steps asked for so far."""
        return self._asked_for

    @property
    def most_steps(self) -> int:
        """Every stage of every item."""
        return len(self._request.item_hashes) * self._request.stages

    @property
    def title(self) -> str:
        """Nothing: only its caller knows."""
        return ""

    def name_of(self, position: int, stage: int, task_id: str) -> str:
        """Positions of item and stage."""
        return StepKey.of_stage(position, stage).name

    def item_hash(self, position: int) -> str:
        """Hash of the item."""
        return self._request.item_hashes[position]

    def known_steps(self) -> Iterable[tuple[StepKey, AgentStepSpec]]:
        """None: its caller knows them."""
        return ()

    async def carry_out(self, runner: StepRunner, history: History, listener: Listener, first: Sequence[str]) -> None:
        """Take each item on from its last outcome."""
        self._asked_for = len(history.ended)
        wanted = {int(key.partition(".")[0]) for key in first}
        items = range(len(self._request.item_hashes))
        await chains(
            runner,
            sorted(items, key=lambda item: item not in wanted) if wanted else items,
            self._request.stages,
            partial(self._ask, listener),
            on_event=listener.tell_step,
            on_stage_failed=listener.tell_stage_failed,
            on_result=self._let_go,
            begin_at=partial(self._begin_at, history),
        )

    async def _ask(
        self, listener: Listener, index: int, stage: int, previous: StepOutcome | None
    ) -> AgentStepSpec | None:
        self._load.drop(index)
        await self._load.room()
        if previous is not None:
            await listener.until_told()  # a question tells the caller of the outcome before it
        spec = await self.questions.ask(index, stage, previous)
        if spec is not None:
            try:
                await self._checks.check([spec], owner=self._owner, path="step")
            except FanfoldError as error:
                raise StageFailure(error.message) from None
            self._load.put(index, byte_size(spec.prompt))
            self._asked_for += 1
        return spec

    def _begin_at(self, history: History, index: int) -> tuple[int, StepOutcome | None]:
        stage, outcome = history.last.get(index, (-1, None))
        if index in history.stopped or (outcome is not None and not outcome.success):
            return self._request.stages, outcome
        return stage + 1, outcome

    def _let_go(self, index: int, _result: StepOutcome | None) -> None:
        """The caller is told each outcome by its event; nothing here holds it any longer than that."""
        self._load.drop(index)
