"""Jobs on two registries, while they, their PostgreSQL, the ways to it and the jobs' producers are befallen."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from faults.aftermath import leaving_nothing
from faults.job_registries import two_registries
from faults.job_storms import live_through_all

pytestmark = [pytest.mark.process, pytest.mark.alone]

SEEDS, LONG_SEEDS = 2, 200
ABREAST = 2


@pytest.mark.timeout(900)
@pytest.mark.contract("C32", "C33", "C35", "C37", "C38", "C44", "F3", "F5", "F6", "F16", "F23")
async def test_whatever_befalls_registries_and_their_database_every_job_ends_once_and_is_told_once_at_each(
    seeds: range, tmp_path: Path, *, proxies: bool
) -> None:
    async with leaving_nothing():
        await live_through_all(seeds, tmp_path, partial(two_registries, proxies=proxies), abreast=ABREAST)
