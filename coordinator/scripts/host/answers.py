"""Answers to a script, one at a time and in an order that can be repeated: that in which its calls have ended (C29)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from coordinator.scripts.host.calls import Call
from coordinator.scripts.host.limits import MAX_ANSWER_BYTES
from fanfold.model.step import FailureCode, StepFailure, StepOutcome

MOST_AHEAD = 256
"""Answers that are given to a script before it has made their calls again."""

NOBODY_SAYS_WHY = StepFailure(code=FailureCode.INTERNAL, message="it failed, and nobody says why")


@dataclass(frozen=True, slots=True)
class Ended:
    """A call's step has ended. `spent` are the tokens that the run had spent by then."""

    number: int
    outcome: StepOutcome
    spent: int = 0


class Diverged(Exception):
    """The script does not do again what it did before."""

    def __init__(self, first: str) -> None:
        """`first` says which call is the first one that differs, and how."""
        super().__init__(f"the script diverged from what is recorded of it: {first}")


class Answers:
    """Those that are due. The first ones are `replayed`: given before, by a former holder of the run.

    A script that does again what it did before makes each call in time for its answer. So answers are given ahead, as
    waiting for each call would take a wake-up of both processes; what was not made again in the end has diverged.
    """

    def __init__(self, replayed: Sequence[Ended] = ()) -> None:
        self.replayed = replayed
        self._known = {ended.number: ended for ended in replayed}
        self._ahead: dict[int, Ended] = {}
        """Given, and their calls not made again yet, in the order in which they were given."""
        self._due: asyncio.Queue[Ended] = asyncio.Queue()
        self._unanswered: dict[int, Call] = {}
        self._progress = asyncio.Event()
        self._is_at_rest = False

    def made(self, call: Call) -> bool:
        """The script has made a call; whether it has to be carried out. Raises Diverged."""
        known = self._known.get(call.number)
        if known is not None and known.outcome.task_id != call.spec.task_id:
            raise Diverged(f"call {call.number} ({call.label}) asks for something else than it did before")
        if self._ahead.pop(call.number, None) is None:
            self._unanswered[call.number] = call
        self._is_at_rest = False
        self._progress.set()
        return known is None

    def rests(self) -> None:
        """The script has worked off all that it was given."""
        self._is_at_rest = True
        self._progress.set()

    def ended(self, ended: Ended) -> None:
        """A call has ended; its answer is due."""
        self._due.put_nowait(ended)

    async def given_ahead(self, ended: Ended) -> bool:
        """Whether an answer is to be given though its call is not made again yet; waits for room. Raises Diverged."""
        if ended.number in self._unanswered:
            return False
        await self._until(lambda: len(self._ahead) < MOST_AHEAD)
        if ended.number in self._unanswered:
            return False
        self._ahead[ended.number] = ended
        return True

    async def made_again(self, ended: Ended) -> Call:
        """The call that an answer is to be given to, once it is made again. Raises Diverged if it is not."""
        await self._until(lambda: ended.number in self._unanswered, ended)
        return self._unanswered.pop(ended.number)

    async def until_caught_up(self) -> None:
        """Wait until the script has made all calls again that it was answered. Raises Diverged."""
        await self._until(lambda: not self._ahead)

    async def _until(self, holds: Callable[[], bool], awaited: Ended | None = None) -> None:
        while not holds():
            if self._is_at_rest:
                ended = next(iter(self._ahead.values()), awaited)
                assert ended is not None
                raise Diverged(f"call {ended.number} ({ended.outcome.agent}) is not made again")
            self._progress.clear()
            await self._progress.wait()

    async def next_due(self) -> tuple[Call, Ended]:
        """The next answer of a call that ended now."""
        ended = await self._due.get()
        return self._unanswered.pop(ended.number), ended

    def given(self) -> None:
        """An answer is on its way: the script has something to do."""
        self._is_at_rest = False


def milliseconds(time: datetime | None) -> int:
    """A time as a script sees it."""
    return 0 if time is None else round(time.timestamp() * 1000)


def fault_of(value: Any) -> StepFailure | None:
    """Why a script cannot be given this answer."""
    try:
        size = len(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())
    except (TypeError, ValueError, RecursionError) as error:
        return StepFailure(code=FailureCode.OUTPUT_INVALID, message=f"the answer is no JSON: {error}")
    if size > MAX_ANSWER_BYTES:
        too_large = f"the answer has {size:,} bytes, and a script is given at most {MAX_ANSWER_BYTES:,}"
        return StepFailure(code=FailureCode.PAYLOAD_TOO_LARGE, message=too_large)
    return None
