"""Jobs on one registry while it, its file and their producers are befallen: none is lost, none runs for ever."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from faults.aftermath import leaving_nothing
from faults.job_registries import one_registry
from faults.job_storms import live_through_all

pytestmark = [pytest.mark.process, pytest.mark.alone]

SEEDS, LONG_SEEDS = 6, 200
ABREAST = 4


@pytest.mark.timeout(900)
@pytest.mark.contract("C32", "C33", "C35", "C37", "C38", "F3", "F6", "F16", "F23")
async def test_whatever_befalls_a_registry_every_job_that_was_accepted_ends_once_and_is_told_once(
    seeds: range, tmp_path: Path, *, proxies: bool
) -> None:
    async with leaving_nothing():
        await live_through_all(seeds, tmp_path, partial(one_registry, proxies=proxies), abreast=ABREAST)
