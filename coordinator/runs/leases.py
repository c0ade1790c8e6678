"""Until when runs are certainly held here, on a clock that does not jump (F5)."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How long a lease lasts, and how often it is renewed, runs that nobody holds are claimed, and old ones swept.

    In seconds. From `margin` before the end of its lease, a run that was not renewed may soon be somebody else's: it
    pauses, for `outage` at most, as long as it is not known whether anybody has taken it over.
    """

    lease: float = 10.0
    renewal: float = 3.0
    claim: float = 0.5
    margin: float = 1.0
    outage: float = 30.0
    sweep: float = 60.0


class Leases:
    """The leases of runs, each counted from before it was asked for."""

    def __init__(self, times: Times) -> None:
        self._times = times
        self._until: dict[str, float] = {}

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._until

    def begin(self, run_id: str, asked_at: float) -> None:
        """The run is held for a lease that was asked for at this monotonic time."""
        self._until[run_id] = asked_at + self._times.lease

    def end(self, run_id: str) -> None:
        """The run is not held here any more."""
        self._until.pop(run_id, None)

    def is_certain(self, run_id: str) -> bool:
        """Whether nobody else can hold the run yet."""
        return time.monotonic() < self._until.get(run_id, 0.0) - self._times.margin

    def is_given_up(self, run_id: str) -> bool:
        """Whether it has been uncertain for so long that the run is left to whoever has it."""
        patience = self._times.outage - self._times.margin
        return time.monotonic() >= self._until.get(run_id, 0.0) + patience
