"""Options of all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.postgres import Server, running_server
from support.unsteady import Unsteady


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the long fault and fuzz runs")
    parser.addoption("--seeds", type=_seeds, help="run these storms: 17, or 1-300")
    parser.addoption("--clis", metavar="DIR", help="also run the coding agents that are installed there")
    parser.addoption("--chart", metavar="DIR", help="also check the Helm chart, with the helm that is installed there")
    parser.addoption("--proxies", action="store_true", help="have storms take TCP proxies in any case")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Unsteady())


def _seeds(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A real PostgreSQL, started when the first test asks for it."""
    with running_server() as server:
        yield server
