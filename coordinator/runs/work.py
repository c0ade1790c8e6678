"""What a run does, by kind: the part of it that differs between a fan-out and a pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

from coordinator.combinators.parallel import fan_out
from coordinator.combinators.runner import StepKey, StepRunner
from coordinator.runs.history import History
from fanfold.errors import FailedPrecondition
from fanfold.model.run import RunKind, RunState
from fanfold.model.script import ScriptMeta, ScriptResult
from fanfold.model.step import AgentStepSpec, StepEvent, StepOutcome

KINDS = frozenset(RunKind)
"""The kinds of runs that this release carries out."""


class CannotGoOn(FailedPrecondition):
    """The run is for others to go on with."""

    default_reason = "CANNOT_GO_ON"


class Listener(Protocol):
    """Hears what happens in a run, by the positions of step or item, and of the stage. It neither blocks nor raises."""

    def tell_step(self, position: int, stage: int, event: StepEvent, *, label: str = "", phase: str = "") -> None:
        """Something happened to a step; an agent() call of a script has a label and a phase."""
        ...

    def tell_phase(self, title: str) -> None:
        """A script entered a phase (C22)."""
        ...

    def tell_log(self, message: str) -> None:
        """A script wrote a line (C23)."""
        ...

    def tell_stage_failed(self, position: int, stage: int, error: str) -> None:
        """A pipeline's stage failed; the item's chain ends there (C15)."""
        ...

    async def until_told(self) -> None:
        """Wait until what was told so far cannot be lost any more."""
        ...


class Counts(Protocol):
    """What kind of run it is, and how many steps it has."""

    kind: RunKind

    @property
    def total(self) -> int:
        """Steps asked for so far."""
        ...

    @property
    def most_steps(self) -> int:
        """How many steps there can be."""
        ...


class Work(Counts, Protocol):
    """What there is to do for a run. The same request always gives the same work, on any coordinator."""

    @property
    def title(self) -> str:
        """What it is about, for people; may be empty."""
        ...

    @property
    def script(self) -> ScriptMeta | None:
        """What a script says of itself; None for other kinds."""
        ...

    @property
    def parent(self) -> str:
        """The session that a script belongs to (C21); empty for other kinds."""
        ...

    @property
    def failure(self) -> str:
        """Why the work itself has failed, once it is carried out; empty if it has not."""
        ...

    @property
    def decided(self) -> asyncio.Future[None] | None:
        """Done when what comes of a script is decided, though its steps may not be gone; None for other kinds."""
        ...

    def result_in(self, state: RunState, reason: str) -> ScriptResult | None:
        """What came of a script whose run ends so; None for other kinds."""
        ...

    def name_of(self, position: int, stage: int, task_id: str) -> str:
        """A step's key in the checkpoint (C7)."""
        ...

    def item_hash(self, position: int) -> str:
        """Hash of a step's item; empty for steps that have none."""
        ...

    def known_steps(self) -> Iterable[tuple[StepKey, AgentStepSpec]]:
        """The steps that are known without asking for them."""
        ...

    async def carry_out(self, runner: StepRunner, history: History, listener: Listener, first: Sequence[str]) -> None:
        """Do what the history lacks. Steps whose keys are in `first` are begun before others."""
        ...


class NoScript:
    """What of `Work` is the same for all kinds that are no scripts."""

    script: ScriptMeta | None = None
    parent = ""
    failure = ""
    decided: asyncio.Future[None] | None = None

    def result_in(self, state: RunState, reason: str) -> ScriptResult | None:
        """None: that is told by the outcomes."""
        return None


class ParallelWork(NoScript):
    """Implements `Work`: a fan-out."""

    kind = RunKind.PARALLEL

    def __init__(self, specs: Sequence[AgentStepSpec]) -> None:
        self._specs = specs

    @property
    def total(self) -> int:
        """Steps asked for."""
        return len(self._specs)

    @property
    def most_steps(self) -> int:
        """All of them."""
        return len(self._specs)

    @property
    def title(self) -> str:
        """What its first step is about."""
        return self._specs[0].description if self._specs else ""

    def name_of(self, position: int, stage: int, task_id: str) -> str:
        """The task id."""
        return task_id

    def item_hash(self, position: int) -> str:
        """Nothing: its steps have no items."""
        return ""

    def known_steps(self) -> Iterable[tuple[StepKey, AgentStepSpec]]:
        """All of them."""
        return ((StepKey.of_spec(index, spec), spec) for index, spec in enumerate(self._specs))

    async def carry_out(self, runner: StepRunner, history: History, listener: Listener, first: Sequence[str]) -> None:
        """Run what has not ended."""
        wanted = frozenset(first)
        left = [index for index in range(len(self._specs)) if (index, 0) not in history.ended]
        if wanted:
            left.sort(key=lambda index: self._specs[index].task_id not in wanted)

        def on_event(index: int, event: StepEvent) -> None:
            listener.tell_step(index, 0, event)

        await fan_out(runner, self._specs, on_event, _let_go, left)


def _let_go(_index: int, _outcome: StepOutcome) -> None:
    """Each outcome is told by its event; nothing here holds it any longer than that."""
