"""Admission: as many steps as there are slots, and a delay that fits how long steps take."""

from __future__ import annotations

import pytest

from executor_node.admission import Admission
from fanfold.errors import ResourceExhausted


@pytest.mark.contract("C10")
def test_slots_are_taken_and_given_back() -> None:
    admission = Admission(2)
    admission.take()
    admission.take()
    with pytest.raises(ResourceExhausted):
        admission.take()
    assert admission.running == 2
    admission.give_back(0.1)
    admission.take()
    assert admission.running == 2


@pytest.mark.contract("C10")
@pytest.mark.parametrize(("duration", "delay"), [(0.001, 0.05), (1000.0, 5.0), (10.0, 2.5)])
def test_the_delay_is_about_when_a_slot_becomes_free(duration: float, delay: float) -> None:
    admission = Admission(4)
    for _ in range(4):
        admission.take()
    for _ in range(50):
        admission.give_back(duration)
        admission.take()
    with pytest.raises(ResourceExhausted) as refusal:
        admission.take()
    assert refusal.value.retry_delay == pytest.approx(delay, rel=0.01)
    assert refusal.value.reason == "NODE_FULL"
