"""Steps that were done before are not done again (C7, C16, F7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from coordinator.combinators.runner import StepKey, StepRunner
from coordinator.journal.journal import Record
from fanfold.model.checkpoint import fingerprint
from fanfold.model.run import RunStepEvent
from fanfold.model.step import AgentStepSpec, StepEnded, StepOutcome
from fanfold.ports import OnStepEvent
from fanfold.wire.run import event_from_bytes

OnChanged = Callable[[str, str], None]
"""Takes the key of a recorded step that runs again, and why."""


class Recall:
    """Implements `StepRunner` around another: a step whose record still matches is answered from it.

    `item_hash` gives the hash of a step's item by its position; empty for steps that have none. Without `keeps` no
    step is to be recorded.
    """

    def __init__(
        self,
        runner: StepRunner,
        records: Iterable[Record],
        on_changed: OnChanged,
        item_hash: Callable[[int], str] = lambda _position: "",
        *,
        keeps: bool = True,
    ) -> None:
        self._runner = runner
        self._records = {record.key: record for record in records}
        self._on_changed = on_changed
        self._item_hash = item_hash
        self._keeps = keeps
        self._running: dict[str, str] = {}
        """Fingerprints of the steps that are being run, by key."""
        self._recalled: set[str] = set()
        """Keys of the steps that were answered from their records, until that is told."""

    def concurrency_hint(self) -> int:
        """The runner's."""
        return self._runner.concurrency_hint()

    async def run_step(self, key: StepKey, spec: AgentStepSpec, on_event: OnStepEvent | None) -> StepOutcome:
        """Answer the step from its record, or run it."""
        if not self._keeps:
            return await self._runner.run_step(key, spec, on_event)
        asked = fingerprint(spec, self._item_hash(key.position))
        record = self._records.pop(key.name, None)
        if record is not None:
            outcome = outcome_of(record)
            if outcome is not None and record.fingerprint == asked:
                self._recalled.add(key.name)
                return replace(outcome, task_id=spec.task_id)
            self._on_changed(key.name, _why(outcome, spec))
        self._running[key.name] = asked
        return await self._runner.run_step(key, spec, on_event)

    def is_recalled(self, name: str) -> bool:
        """Whether a step whose end is not told yet was answered from its record."""
        return name in self._recalled

    def record_of(self, name: str, outcome: StepOutcome, data: bytes) -> Record | None:
        """The record to be kept of a step that ended: none if it failed, or was answered from a record."""
        self._recalled.discard(name)
        asked = self._running.pop(name, None)
        return Record(name, asked, data) if asked is not None and outcome.success else None


def outcome_of(record: Record) -> StepOutcome | None:
    """What was recorded; None for what only a newer release can read."""
    event = event_from_bytes(record.data)
    if isinstance(event, RunStepEvent) and isinstance(event.event, StepEnded):
        return event.event.outcome
    return None


def _why(outcome: StepOutcome | None, spec: AgentStepSpec) -> str:
    if outcome is None:
        return "its record is of a newer release"
    if outcome.agent != spec.agent:
        return f"its agent was {outcome.agent!r}"
    return "its prompt, max_steps, output_schema or item changed"
