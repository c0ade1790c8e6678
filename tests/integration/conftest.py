"""What several modules of these tests begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from support.adopted import Machine, Two, coordinator
from support.postgres import Server


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    """A node that a test can start anew."""
    machine = Machine(tmp_path, AsyncExitStack())
    await machine.boot()
    yield machine
    await machine.stack.aclose()


@pytest.fixture
async def two(machine: Machine) -> AsyncIterator[Two]:
    """Two coordinators of that node."""
    async with coordinator(machine, "first") as first, coordinator(machine, "second") as second:
        yield first, second


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    """The address of a database of its own."""
    with postgres.database() as its_url:
        yield its_url
