"""Which storms the tests of faults have, and over which wires."""

from __future__ import annotations

import pytest

from support.network import why_not

BATCH = 10
"""Storms of one test; several are lived through by one mesh."""

_WIRING = pytest.StashKey[str]()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test of storms its seeds: as many as its module says, or those that were asked for."""
    if "seeds" in metafunc.fixturenames:
        asked = metafunc.config.getoption("--seeds")
        module = metafunc.module
        first, last = asked or (1, module.LONG_SEEDS if metafunc.config.getoption("--long") else module.SEEDS)
        batches = [range(start, min(start + BATCH, last + 1)) for start in range(first, last + 1, BATCH)]
        metafunc.parametrize("seeds", batches, ids=lambda seeds: f"seeds-{seeds[0]}-to-{seeds[-1]}")


@pytest.fixture(scope="session")
def proxies(pytestconfig: pytest.Config) -> bool:
    """Whether wires are TCP proxies. It is told after the tests, because proxies show less than real wires."""
    why = "--proxies asks for them" if pytestconfig.getoption("--proxies") else why_not()
    pytestconfig.stash[_WIRING] = f"TCP proxies ({why})" if why else "network namespaces"
    return bool(why)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _WIRING in config.stash:
        terminalreporter.write_line(f"Services were wired by {config.stash[_WIRING]}.")
