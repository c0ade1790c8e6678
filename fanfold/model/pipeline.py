"""A pipeline's stages: what each is given, what it answers, and what comes of all items (C14, C15)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from fanfold.model.step import AgentStepSpec, StepOutcome

STAGE_TIMEOUT = 30.0
"""Seconds within which a stage answers, unless the caller says otherwise (C15)."""

MAX_STAGE_ERROR = 2_000
"""Characters of a stage's error that are told; what is longer is cut."""


@dataclass(frozen=True, slots=True, eq=False)
class StageContext(Mapping[str, Any]):
    """What a stage is given, to be read as attributes or as a mapping: `ctx["previous"]` is `ctx.previous` (C15).

    `previous` is the outcome of the item's stage before, None in the first; it is a success, as a failed step ends the
    item's chain. `index` is the item's position and `stage` the stage's, from 0.
    """

    item: Any
    previous: StepOutcome | None
    index: int
    stage: int

    def __getitem__(self, name: str) -> Any:
        if name in _FIELDS:
            return getattr(self, name)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_FIELDS)

    def __len__(self) -> int:
        return len(_FIELDS)


_FIELDS = tuple(field.name for field in fields(StageContext))

Stage = Callable[[StageContext], AgentStepSpec | Mapping[str, Any] | None]
"""A plain function that says what an item's next step is; None ends the item's chain (C14)."""


class StageFailure(Exception):
    """A stage raised, answered something that is no spec, or did not answer in time (C15)."""

    def __init__(self, error: str) -> None:
        super().__init__(error if len(error) <= MAX_STAGE_ERROR else f"{error[: MAX_STAGE_ERROR - 1]}…")

    @property
    def error(self) -> str:
        """What went wrong, in words."""
        return str(self.args[0])


StageAnswer = AgentStepSpec | StageFailure | None
"""What a stage comes to: the item's next step, its failure, or the end of the item's chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRequest:
    """A question of the coordinator to the pipeline's caller; `id` names it within the call."""

    id: int
    index: int
    stage: int
    previous: StepOutcome | None
