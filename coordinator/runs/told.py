"""The form in which a run's events go to its caller: encoded, but for those that are to be taken apart anyway."""

from __future__ import annotations

from fanfold.model.run import RunEvent, RunStepEvent
from fanfold.model.step import StepEnded
from fanfold.wire.encoded import has_large_output
from fanfold.wire.run import event_to_bytes

Told = bytes | RunStepEvent
"""An encoded event, or the end of a step with a large output, which goes in parts: to encode all of it at once only to
take it apart again would hold up everybody else's steps for a good part of a second."""


def told(event: RunEvent) -> Told:
    """The event as it is told."""
    return event if isinstance(event, RunStepEvent) and has_large_output(event.event) else event_to_bytes(event)


def weight_of(one: Told) -> int:
    """What it holds in memory, about."""
    if isinstance(one, bytes):
        return len(one)
    return len(one.event.outcome.output) if isinstance(one.event, StepEnded) else 0
