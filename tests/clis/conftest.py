"""These tests need a gigabyte of programs, so they run only where `--clis` says that those are installed."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--clis") is None:
        for item in items:
            if "clis" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason="the coding agents are not installed: run `make test-clis`"))
