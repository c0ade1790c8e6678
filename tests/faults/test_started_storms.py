"""Started runs while coordinators and registry are killed: none is lost, or done twice, or told as it did not end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from faults.started_storms import complaints, live_through

pytestmark = [pytest.mark.process, pytest.mark.alone]

SEEDS, LONG_SEEDS = 2, 60
STORM_LIMIT = 240


@pytest.mark.timeout(STORM_LIMIT * 10)
@pytest.mark.contract("C19", "C31", "C35", "C36", "C37", "C38", "C43", "C44", "F6")
async def test_whatever_is_killed_every_started_run_ends_as_its_job_and_every_step_runs_once(
    seeds: range, tmp_path: Path
) -> None:
    found: list[str] = []
    for seed in seeds:
        async with asyncio.timeout(STORM_LIMIT):
            aftermath = await live_through(seed, tmp_path / f"seed-{seed}")
        found.extend(f"seed {seed}: {complaint}" for complaint in complaints(aftermath))
    assert not found, "\n".join(found)
