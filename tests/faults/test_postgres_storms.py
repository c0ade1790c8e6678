"""Journaled runs whose journal is in PostgreSQL, while that, the ways to it, coordinators and nodes are befallen."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from faults.aftermath import leaving_nothing
from faults.journaled_storms import live_through
from faults.storms import postgres_mesh

pytestmark = [pytest.mark.process, pytest.mark.alone]

SEEDS, LONG_SEEDS = 2, 300


@pytest.mark.timeout(900)
@pytest.mark.contract("C13", "C14", "C16", "C17", "C18", "C19", "C43", "F2", "F5", "F6", "F7", "F17", "F19")
async def test_whatever_befalls_coordinators_and_their_database_no_run_is_lost_and_no_success_repeated(
    seeds: range, tmp_path: Path, *, proxies: bool
) -> None:
    async with leaving_nothing():
        await live_through(seeds, tmp_path / "mesh", partial(postgres_mesh, proxies=proxies))
