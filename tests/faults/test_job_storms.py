"""Jobs while their registry and their producers are killed: none is lost, none runs for ever, no settlement changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from faults.job_checker import complaints
from faults.job_storms import live_through

pytestmark = pytest.mark.process

SEEDS, LONG_SEEDS = 10, 200
ABREAST = 4
STORM_LIMIT = 90


@pytest.mark.timeout(900)
@pytest.mark.contract("C32", "C33", "C35", "C37", "C38", "F3", "F6", "F16", "F23")
async def test_whatever_is_killed_every_job_that_was_accepted_ends_once_and_is_told_once(
    seeds: range, tmp_path: Path
) -> None:
    lanes = asyncio.Semaphore(ABREAST)
    found: list[str] = []

    async def storm(seed: int) -> None:
        async with lanes, asyncio.timeout(STORM_LIMIT):
            history = await live_through(seed, tmp_path / f"seed-{seed}")
        assert len(history.jobs) > 0
        found.extend(f"seed {seed}: {complaint}" for complaint in complaints(history))

    async with asyncio.TaskGroup() as tasks:
        for seed in seeds:
            tasks.create_task(storm(seed))
    assert not found, "\n".join(found)
