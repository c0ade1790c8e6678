"""Gates before model providers: one for each provider and credential, passed by all steps of the node (F8, F9).

A provider that limits the rate closes the gate for a while, and those who wait there go on at different moments. One
that says that the quota is gone closes it for good: nobody passes until, after a pause, a single call has tried again,
and has had its answer; others wait for that meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import NamedTuple

from executor_node.agents.llm.assignment import Assignment
from fanfold.backoff import full_jitter
from fanfold.model.step import FailureCode, StepFailure

MAX_WAIT_SECONDS = 300.0
"""A provider that wants a longer pause fails the step instead, which may be tried again."""

LONGEST_PAUSE_SECONDS = 3600.0
"""However long a pause a provider wants, after this one it is asked again: some give a date where seconds are meant."""

_FIRST_PAUSE_SECONDS = 1.0
_MOST_PAUSE_SECONDS = 60.0
_QUIET_SECONDS = 60.0


class Gate:
    """The gate before one provider, as one credential passes it.

    `quota_pause` in seconds is how long nobody asks a provider whose quota is gone; then one call does.
    """

    def __init__(self, provider: str, *, quota_pause: float) -> None:
        self.provider = provider
        self._quota_pause = quota_pause
        self._loop = asyncio.get_running_loop()
        self._opens_at = 0.0
        self._limits_in_a_row = 0
        self._limited_at = 0.0
        self._quota_message = ""
        self._asks_again_at = 0.0
        self._trial: _Trial | None = None

    @property
    def waiting_on(self) -> str:
        """Why steps do not pass, in words; empty if they do."""
        if self._quota_message:
            return f"the quota of {self.provider}"
        return f"the rate limit of {self.provider}" if self._opens_at > self._loop.time() else ""

    @property
    def is_out_of_quota(self) -> bool:
        """Whether a step that would start now could not so much as try."""
        return bool(self._quota_message) and (self._trial is not None or self._loop.time() < self._asks_again_at)

    @property
    def refusal(self) -> StepFailure | None:
        """The failure of a step that would start now, when the quota is gone and it is not yet time to ask again."""
        if self._quota_message and self._trial is None and self._loop.time() < self._asks_again_at:
            return StepFailure(code=FailureCode.QUOTA_EXHAUSTED, message=self._quota_message)
        return None

    async def turn(self, who: object) -> StepFailure | None:
        """Wait until the next call may be made. Returns the failure of the step if it may not be made at all.

        `who` is the step that calls; it says `leave` when it ends.
        """
        while True:
            if failure := await self._wait_for_rate() or self.refusal:
                return failure
            if not self._quota_message:
                return None
            if self._trial is None:
                self._trial = _Trial(who, self._loop.create_future())
            if self._trial.who is who:
                return None
            await asyncio.shield(self._trial.over)

    def leave(self, who: object) -> None:
        """A step makes no more calls. If it was to try whether there is quota again, another may."""
        if self._trial is not None and self._trial.who is who:
            self._end_trial()

    async def _wait_for_rate(self) -> StepFailure | None:
        spread = 0.0
        while (left := self._opens_at + spread - self._loop.time()) > 0:
            if left > MAX_WAIT_SECONDS:
                message = f"{self.provider} limits the rate for another {left:.0f} seconds"
                return StepFailure(code=FailureCode.AGENT_FAILED, message=message, retryable=True)
            if self._opens_at > self._loop.time():
                # Drawn anew each time that it is closed, and only after it opens: nobody is earlier than told.
                spread = full_jitter(self._limits_in_a_row, first=_FIRST_PAUSE_SECONDS, most=_MOST_PAUSE_SECONDS)
            await asyncio.sleep(self._opens_at + spread - self._loop.time())
        return None

    def limited(self, retry_after: float | None) -> None:
        """The provider has refused a call because there were too many; `retry_after` in seconds if it said so."""
        now = self._loop.time()
        self._limits_in_a_row = self._limits_in_a_row + 1 if now - self._limited_at < _QUIET_SECONDS else 1
        self._limited_at = now
        pause = full_jitter(self._limits_in_a_row, first=_FIRST_PAUSE_SECONDS, most=_MOST_PAUSE_SECONDS)
        wanted = pause if retry_after is None else min(retry_after, LONGEST_PAUSE_SECONDS)
        self._opens_at = max(self._opens_at, now + wanted)

    def exhausted(self, message: str) -> None:
        """The provider has said that the quota is gone."""
        self._quota_message = message or f"the quota of {self.provider} is exhausted"
        self._asks_again_at = self._loop.time() + self._quota_pause
        self._end_trial()

    def answered(self, who: object) -> None:
        """The provider has answered a call. While the quota is gone, that counts of the call that tries it (F8).

        Those that were under way before are answered for a while, and say nothing of how it is now.
        """
        if self._trial is not None and self._trial.who is who:
            self._quota_message = ""
            self._end_trial()

    def _end_trial(self) -> None:
        if self._trial is not None:
            self._trial.over.set_result(None)
            self._trial = None


class _Trial(NamedTuple):
    """The call that tries whether there is quota again, and when that is known."""

    who: object
    over: asyncio.Future[None]


class Gates:
    """All gates of a node."""

    def __init__(self, make: Callable[[str], Gate]) -> None:
        self._make = make
        self._gates: dict[bytes, Gate] = {}

    def of(self, assignment: Assignment) -> Gate:
        """The gate that calls of this assignment pass."""
        return self.before(assignment.provider, f"{assignment.base_url}", f"{assignment.api_key}")

    def before(self, provider: str, *credentials: str) -> Gate:
        """The gate before a provider for who shows it this. Credentials are kept as hashes only."""
        digest = hashlib.sha256("\0".join((provider, *credentials)).encode(errors="surrogateescape")).digest()
        if digest not in self._gates:
            self._gates[digest] = self._make(provider)
        return self._gates[digest]

    def all_open(self) -> bool:
        """Whether calls pass all of them."""
        return not any(gate.waiting_on for gate in self._gates.values())
