"""What the log is told of work that fails again and again."""

from __future__ import annotations

import pytest
from structlog.testing import CapturedCall, CapturingLogger

from fanfold.sql import complaints as module
from fanfold.sql.complaints import MOST_CAUSES, Complaints

LONG = 1_000.0


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> CapturingLogger:
    """The log, whatever level other tests have had set for this process."""
    log = CapturingLogger()
    monkeypatch.setattr(module, "_log", log)
    return log


def test_each_cause_is_told_once_and_then_that_it_is_over(log: CapturingLogger) -> None:
    complaints = Complaints("reading", LONG)
    for why in ("away", "away", "full", "away"):
        complaints.failed(why, size=7)
    complaints.succeeded()
    complaints.succeeded()
    assert log.calls == [
        CapturedCall("error", ("reading failed",), {"why": "away", "failures": 1, "size": 7}),
        CapturedCall("error", ("reading failed",), {"why": "full", "failures": 3, "size": 7}),
        CapturedCall("info", ("reading succeeds again",), {"failures": 4}),
    ]


def test_a_cause_that_lasts_is_told_again_after_a_time(log: CapturingLogger) -> None:
    complaints = Complaints("reading", again_seconds=0)
    for _ in range(3):
        complaints.failed("away")
    assert [call.kwargs["failures"] for call in log.calls] == [1, 2, 3]


def test_work_that_now_fails_and_now_succeeds_fills_no_log(log: CapturingLogger) -> None:
    complaints = Complaints("reading", LONG)
    for _ in range(100):
        complaints.failed("busy")
        complaints.succeeded()
    assert [call.args[0] for call in log.calls] == ["reading failed", "reading succeeds again"]


def test_causes_without_end_are_not_all_remembered(log: CapturingLogger) -> None:
    complaints = Complaints("reading", LONG)
    for number in range(MOST_CAUSES + 1):
        complaints.failed(str(number))
    complaints.failed("0")
    assert [call.kwargs["why"] for call in log.calls].count("0") == 2
