"""Which wires the tests of faults use."""

from __future__ import annotations

import pytest

from support.network import why_not

_WIRING = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def proxies(pytestconfig: pytest.Config) -> bool:
    """Whether wires are TCP proxies. It is told after the tests, because proxies show less than real wires."""
    why = "--proxies asks for them" if pytestconfig.getoption("--proxies") else why_not()
    pytestconfig.stash[_WIRING] = f"TCP proxies ({why})" if why else "network namespaces"
    return bool(why)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _WIRING in config.stash:
        terminalreporter.write_line(f"Services were wired by {config.stash[_WIRING]}.")
