"""What the log is told of work that fails again and again."""

from __future__ import annotations

import structlog

from fanfold.sql.complaints import MOST_CAUSES, Complaints

LONG = 1_000.0


def test_each_cause_is_told_once_and_then_that_it_is_over() -> None:
    complaints = Complaints("reading", LONG)
    with structlog.testing.capture_logs() as logs:
        for why in ("away", "away", "full", "away"):
            complaints.failed(why, size=7)
        complaints.succeeded()
        complaints.succeeded()
    assert logs == [
        {"event": "reading failed", "log_level": "error", "why": "away", "failures": 1, "size": 7},
        {"event": "reading failed", "log_level": "error", "why": "full", "failures": 3, "size": 7},
        {"event": "reading succeeds again", "log_level": "info", "failures": 4},
    ]


def test_a_cause_that_lasts_is_told_again_after_a_time() -> None:
    complaints = Complaints("reading", again_seconds=0)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            complaints.failed("away")
    assert [log["failures"] for log in logs] == [1, 2, 3]


def test_work_that_now_fails_and_now_succeeds_fills_no_log() -> None:
    complaints = Complaints("reading", LONG)
    with structlog.testing.capture_logs() as logs:
        for _ in range(100):
            complaints.failed("busy")
            complaints.succeeded()
    assert [log["event"] for log in logs] == ["reading failed", "reading succeeds again"]


def test_causes_without_end_are_not_all_remembered() -> None:
    complaints = Complaints("reading", LONG)
    with structlog.testing.capture_logs() as logs:
        for number in range(MOST_CAUSES + 1):
            complaints.failed(str(number))
        complaints.failed("0")
    assert [log["why"] for log in logs].count("0") == 2
