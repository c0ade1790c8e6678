"""What came of a detached run, as JSON, for those who ask later (C37)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Protocol

from coordinator.journal.journal import Entry, Journal, JournalFailed, PayloadGone
from coordinator.runs.outage import RETRY_SECONDS
from coordinator.runs.reader import page_of
from fanfold.errors import ResourceExhausted
from fanfold.model.run import Run, RunStepEvent
from fanfold.model.script import ScriptResult
from fanfold.model.script_checks import result_to_json
from fanfold.model.step import StepEnded
from fanfold.model.validation import outcome_to_json
from fanfold.wire.run import event_from_bytes

_CHUNK = 200
"""Events that are looked at before others get their turn."""

MAX_RESULT_BYTES = 64 * 2**20
"""Largest result that is put together."""


class Result(Protocol):
    """What came of a run, for its job."""

    async def encoded(self, most: int) -> bytes:
        """As JSON.

        Raises:
            ResourceExhausted: it would be larger than `most` bytes, or than MAX_RESULT_BYTES.
            PayloadGone: a part of it is not kept any more.
        """
        ...


class Returned:
    """Implements `Result`: what came of a script, as `{"value": ..., "stop_reason": ..., ...}` (C26)."""

    def __init__(self, result: ScriptResult) -> None:
        self._result = result

    async def encoded(self, most: int) -> bytes:
        """As JSON. Raises ResourceExhausted if that has more than `most` bytes."""
        encoded = json.dumps(result_to_json(self._result), ensure_ascii=False).encode()
        if len(encoded) > most:
            raise ResourceExhausted(f"it has {len(encoded):,} bytes, and the limit is {most:,}")
        return encoded


class Outcomes:
    """Implements `Result`: all outcomes of a run as it ends, in the order of its steps.

    Its events up to number `last` are durable.
    """

    def __init__(self, journal: Journal, run: Run, *, last: int) -> None:
        self._journal = journal
        self._run = run
        self._last = last

    async def encoded(self, most: int) -> bytes:
        """As JSON: `{"outcomes": [...], "budget": {...}}`; null for a step that did not end, and no budget without one.

        Raises as `Result.encoded`.
        """
        most = min(most, MAX_RESULT_BYTES)
        outcomes = [b"null"] * self._run.steps.total
        size, following = 0, 1
        while following <= self._last:
            page = await self._page(following)
            following = page[-1].sequence + 1
            for position, entry in enumerate(page):
                event = event_from_bytes(entry.data)
                if isinstance(event, RunStepEvent) and isinstance(event.event, StepEnded):
                    outcome = json.dumps(outcome_to_json(event.event.outcome), ensure_ascii=False).encode()
                    outcomes[event.index] = outcome
                    size += len(outcome)
                    if size > most:
                        raise ResourceExhausted(f"its outcomes have more than {most:,} bytes")
                if position % _CHUNK == 0:
                    await asyncio.sleep(0)
        spent = self._run.budget
        budget = f', "budget": {json.dumps(asdict(spent))}' if spent is not None else ""
        return b'{"outcomes": [' + b", ".join(outcomes) + f"]{budget}}}".encode()

    async def _page(self, first: int) -> Sequence[Entry]:
        """Events from a number on, as soon as the journal can be read."""
        while True:
            try:
                return await page_of(self._journal, self._run.run_id, first)
            except PayloadGone:
                raise
            except JournalFailed:
                await asyncio.sleep(RETRY_SECONDS)
