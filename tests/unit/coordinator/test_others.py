"""Runs that are left to other coordinators."""

from __future__ import annotations

import math
import time

from coordinator.runs.others import MAX_OTHERS, Others


def test_a_run_is_left_to_others_for_as_long_as_was_said() -> None:
    others = Others()
    before = time.monotonic()
    others.leave("for-good", "its form is unknown")
    others.leave("for-now", "its agents are gone", 30.0)
    after = time.monotonic()
    assert others.at(before + 29.9) == {"for-good", "for-now"}
    assert others.at(after + 30.1) == {"for-good"}
    for_good, for_now = others.ends()
    assert for_good == math.inf
    assert before + 30.0 <= for_now <= after + 30.0


def test_no_more_runs_are_remembered_than_may_be_and_the_longest_known_are_forgotten() -> None:
    others = Others()
    for number in range(MAX_OTHERS + 2):
        others.leave(f"run-{number}", "its form is unknown")
    assert len(others.at(time.monotonic())) == MAX_OTHERS
    assert "run-1" not in others
    assert "run-2" in others
