"""Since when nothing of a run moves, and what it waits on (C42)."""

from __future__ import annotations

import pytest

from coordinator.waiting import Waiting, WaitsOn

pytestmark = pytest.mark.contract("C42")


def test_a_run_stands_still_since_the_first_look_at_which_nothing_moved() -> None:
    waiting = Waiting()
    with waiting.step(), waiting.on(WaitsOn.PLACE, "a place"):
        assert waiting.look() == "a place"
        first = waiting.standstill
        assert first is not None
        assert first.on is WaitsOn.PLACE
        waiting.look()
        assert waiting.standstill == first
        with waiting.step():
            assert waiting.look() == ""
            assert waiting.standstill is None
        waiting.look()
        assert waiting.standstill is not None
        assert waiting.standstill.since >= first.since


def test_what_it_stands_still_on_may_change_and_is_what_most_steps_wait_on() -> None:
    waiting = Waiting()
    with waiting.on(WaitsOn.QUOTA, "a quota"):
        waiting.look()
        before = waiting.standstill
        with waiting.on(WaitsOn.NODE, "node n"), waiting.on(WaitsOn.NODE, "node n"):
            assert waiting.look() == "node n (2 of 3 steps)"
            assert waiting.standstill is not None
            assert before is not None
            assert (waiting.standstill.on, waiting.standstill.since) == (WaitsOn.NODE, before.since)
