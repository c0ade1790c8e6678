"""Pauses between attempts: random below a ceiling that doubles (F9)."""

from __future__ import annotations

import time

import pytest

from fanfold.backoff import Absence, full_jitter

FIRST, MOST = 0.2, 5.0
DRAWS = 2000


def draws(failures: int, *, first: float = FIRST, most: float = MOST) -> list[float]:
    return [full_jitter(failures, first=first, most=most) for _ in range(DRAWS)]


@pytest.mark.contract("F9")
@pytest.mark.parametrize(("failures", "ceiling"), [(1, 0.2), (2, 0.4), (3, 0.8), (5, 3.2), (6, 5.0), (50, 5.0)])
def test_pauses_lie_below_a_ceiling_that_doubles_up_to_the_most(failures: int, ceiling: float) -> None:
    pauses = draws(failures)
    assert min(pauses) >= 0
    assert 0.95 * ceiling < max(pauses) <= ceiling


@pytest.mark.contract("F9")
@pytest.mark.parametrize("failures", [1, 3, 1000])
def test_pauses_are_spread_over_the_whole_range(failures: int) -> None:
    pauses = draws(failures)
    ceiling = min(MOST, FIRST * 2 ** (failures - 1))
    quarters = [sum(ceiling * n / 4 <= pause < ceiling * (n + 1) / 4 for pause in pauses) for n in range(4)]
    # 500 are expected in each; eight standard deviations from that are 155.
    assert all(345 < quarter < 655 for quarter in quarters), quarters


def test_a_peer_that_stays_away_for_ever_is_no_overflow() -> None:
    assert max(draws(10**6)) <= MOST
    assert 0 <= full_jitter(10**6, first=1.0, most=float("inf")) < float("inf")


def test_a_first_pause_above_the_most_is_cut() -> None:
    assert max(draws(1, first=10.0, most=0.5)) <= 0.5


def test_a_peer_may_be_away_for_so_long_from_its_first_failure_to_its_next_word() -> None:
    absence, gone = Absence(0.2), OSError("gone")
    assert absence.seconds_left(gone) == pytest.approx(0.2)
    time.sleep(0.25)
    with pytest.raises(OSError, match="gone"):
        absence.seconds_left(gone)
    assert absence.failures == 1
    absence.end()
    assert absence.failures == 0
    assert absence.seconds_left(gone) == pytest.approx(0.2), "it is counted anew"
