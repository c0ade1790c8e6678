"""Journaled runs while coordinators are killed, frozen, cut off and drained, and their store is taken away."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from faults.aftermath import leaving_nothing
from faults.journaled_storms import live_through
from faults.services import Coordinator, JournalingCoordinator
from faults.store import Store
from faults.storms import abreast, journaling_mesh, schedule
from faults.subjects import Family, Subject
from faults.wires import wired

pytestmark = [pytest.mark.process, pytest.mark.alone]

SEEDS, LONG_SEEDS = 10, 500


@pytest.mark.timeout(600)
@pytest.mark.contract("C13", "C14", "C16", "C17", "C18", "C19", "C43", "F2", "F5", "F6", "F7", "F17", "F19")
async def test_whatever_befalls_coordinators_and_their_store_no_run_is_lost_and_no_success_repeated(
    seeds: range, tmp_path: Path, *, proxies: bool
) -> None:
    async with leaving_nothing():
        mesh = partial(journaling_mesh, proxies=proxies)
        await abreast(seeds, lambda share: live_through(share, tmp_path / f"mesh-{share[0]}", mesh))


async def test_every_storm_befalls_coordinators_in_every_way_and_repeats_itself(
    tmp_path: Path, *, proxies: bool
) -> None:
    async with wired(["left"], proxies=proxies) as wires:
        first: list[Subject] = [
            JournalingCoordinator("left", tmp_path, [], wires[0], {"path": str(tmp_path / "journal.db")}),
            *wires,
            Store(tmp_path / "journal.db"),
        ]
        others = [Coordinator(tmp_path, {}, "other")]
        families = {(s.name, name): kind.family for s in first for name, kind in s.kinds().items()}
        befallen = set()
        for seed in range(1, LONG_SEEDS + 1):
            faults = schedule(random.Random(seed), first, others)
            assert {families.get((fault.subject, fault.kind)) for fault in faults} >= set(Family)
            assert faults == schedule(random.Random(seed), first, others)
            befallen |= {(fault.subject, fault.kind) for fault in faults}
        assert befallen == {*families, ("other", "frozen")}
