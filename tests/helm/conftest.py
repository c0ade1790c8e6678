"""These tests need programs that nothing else needs, so they run only where `--chart` says that those are installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.charts import Helm


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return True if config.getoption("--chart") is None else None


@pytest.fixture(scope="session")
def helm(pytestconfig: pytest.Config) -> Helm:
    """The real program."""
    own = Path(pytestconfig.getoption("--chart")) / "helm"
    found = str(own) if own.exists() else shutil.which("helm")
    if found is None:
        pytest.skip("helm is not on the path, and has no package for this machine")
    return Helm(found)
