"""How jobs move from state to state (C35): pure functions, which the registry applies and the store keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fanfold.model.job import JobState

LOST = "producer lost"
"""Detail of a job whose producer stayed away beyond the grace (C38)."""

UNASKED = "its producer says that it was killed, though nobody asked for a stop"
"""Detail of a job that was killed without being asked to stop, where its producer says nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a job stands.

    `stop_reason` is why it was asked to stop, and empty if it was not. `given_up` says that the registry has settled
    it, because its producer did not.
    """

    state: JobState = JobState.RUNNING
    detail: str = ""
    stop_reason: str = ""
    given_up: bool = False


RUNNING = Standing()

Move = Callable[[Standing], Standing]
"""Where a job stands after one that stood elsewhere; the same for one that does not move."""


def stopped(standing: Standing, reason: str) -> Standing:
    """After somebody asks for a stop. The first reason is kept, and what is settled stays as it is."""
    if standing.state is not JobState.RUNNING:
        return standing
    return replace(standing, state=JobState.STOPPING, stop_reason=reason)


def settled(standing: Standing, state: JobState, detail: str) -> Standing:
    """After the producer has settled it. The first settlement stays as it is; killed is only what was asked to stop."""
    assert state.is_settled
    if standing.state.is_settled:
        return standing
    if state is JobState.KILLED and standing.state is JobState.RUNNING:
        return replace(standing, state=JobState.FAILED, detail=detail or UNASKED)
    return replace(standing, state=state, detail=detail)


def given_up(standing: Standing, detail: str) -> Standing:
    """After the registry has given it up. What is settled stays as it is."""
    if standing.state.is_settled:
        return standing
    return replace(standing, state=JobState.FAILED, detail=detail, given_up=True)


def orphaned(seconds: float, holds: str, producer: str) -> str:
    """Detail of a job that did not stop within `seconds`; names what may be orphaned (C38)."""
    left = holds or f"what its producer {producer} runs"
    return f"not settled within {seconds:g} s of being asked to stop; may be orphaned: {left}"
