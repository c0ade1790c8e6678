"""The form in which a run's events go to its caller."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from coordinator.methods.answers import run_responses
from coordinator.runs.told import told, weight_of
from fanfold.model.run import RunStepEvent
from fanfold.model.step import StepEnded, StepOutcome
from fanfold.parts import LINK_TEXT_BYTES, RUN_TEXT_BYTES, RUN_WHOLE_BYTES
from fanfold.v1 import coordinator_pb2 as pb
from fanfold.wire.run import event_from_bytes, event_to_bytes

NOW = datetime(2026, 5, 17, 12, 0, 0, 250_000, tzinfo=UTC)


def ended(output: str) -> RunStepEvent:
    outcome = StepOutcome(
        task_id="a", agent="noop", output=output, success=True, attempts=1, node="n", started_at=NOW, ended_at=NOW
    )
    return RunStepEvent(sequence=7, time=NOW, index=3, event=StepEnded(task_id="a", time=NOW, outcome=outcome))


def test_an_event_is_told_encoded_and_a_large_output_as_it_is() -> None:
    small, large = ended("x" * LINK_TEXT_BYTES), ended("x" * (LINK_TEXT_BYTES + 1))
    assert told(small) == event_to_bytes(small)
    assert told(large) is large
    assert weight_of(told(small)) == len(event_to_bytes(small))
    assert weight_of(told(large)) == LINK_TEXT_BYTES + 1


@pytest.mark.parametrize("length", [0, 1000, LINK_TEXT_BYTES + 1, RUN_TEXT_BYTES + 1])
def test_what_is_encoded_says_the_same_however_large_it_is(length: int) -> None:
    event = ended("ü" * length)
    assert event_from_bytes(event_to_bytes(event)) == event


@pytest.mark.parametrize("takes_parts", [True, False])
@pytest.mark.parametrize("length", [LINK_TEXT_BYTES + 1, RUN_TEXT_BYTES + 1, RUN_WHOLE_BYTES + 1])
def test_a_caller_gets_the_same_messages_of_an_event_in_either_form(length: int, *, takes_parts: bool) -> None:
    event, before = ended("x" * length), event_to_bytes(ended("small"))
    as_it_is = list(run_responses([before, event], pb.RunResponse, takes_parts=takes_parts))
    encoded = list(run_responses([before, event_to_bytes(event)], pb.RunResponse, takes_parts=takes_parts))
    assert [m for r in as_it_is for m in r.events] == [m for r in encoded for m in r.events]
    assert [r.part for r in as_it_is if r.HasField("part")] == [r.part for r in encoded if r.HasField("part")]
    assert any(r.HasField("part") for r in as_it_is) is (takes_parts and length > RUN_TEXT_BYTES)
