"""Started runs that are kept in PostgreSQL with their jobs, while that, coordinators and registry are befallen."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from faults.started_storms import complaints, live_through
from support.postgres import running_server

pytestmark = [pytest.mark.process, pytest.mark.alone]

SEEDS, LONG_SEEDS = 1, 60
STORM_LIMIT = 240


@pytest.mark.timeout(STORM_LIMIT * 10)
@pytest.mark.contract("C19", "C31", "C35", "C36", "C37", "C38", "C43", "C44", "F6")
async def test_whatever_befalls_services_and_their_database_every_started_run_ends_as_its_job(
    seeds: range, tmp_path: Path
) -> None:
    found: list[str] = []
    with running_server() as server:
        for seed in seeds:
            async with asyncio.timeout(STORM_LIMIT):
                aftermath = await live_through(seed, tmp_path / f"seed-{seed}", server)
            found.extend(f"seed {seed}: {complaint}" for complaint in complaints(aftermath))
    assert not found, "\n".join(found)
