"""Tests that fail, and pass when they are run once more: told in full, and no more than a few in one run.

A process test has the machine's scheduler for a partner, and one in some thousands fails for it. That is a fault to be
found nevertheless, in the test or in what it tests; more than a few in one run fail the run.
"""

from __future__ import annotations

import pytest
from _pytest.terminal import TerminalReporter

MOST = 3


class Unsteady:
    """Counts the tests that are run once more (`--reruns`)."""

    def __init__(self) -> None:
        self._first_tries: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome == "rerun":  # type: ignore[comparison-overlap]  # pytest-rerunfailures' own
            self._first_tries.append(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if len(self._first_tries) > MOST:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        if not self._first_tries:
            return
        terminalreporter.section("failed at first, and were run once more")
        for report in self._first_tries:
            terminalreporter.section(report.nodeid, sep="-")
            terminalreporter.write_line(report.longreprtext)
        if (count := len(self._first_tries)) > MOST:
            terminalreporter.write_line(f"Failed: {count} tests were run once more, and {MOST} are the most.", red=True)
