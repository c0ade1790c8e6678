"""What all tests share: the mark that tells which rules a test proves, and waiting for conditions."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the long fault and fuzz runs")
