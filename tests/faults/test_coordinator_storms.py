"""Journaled runs while coordinators are killed, frozen, cut off and drained, and their store is taken away."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from fanfold.background import background
from faults.aftermath import leaving_nothing, noting, surprises, until_as_before, until_calm, until_nothing_survives
from faults.journal_checker import journal_complaints
from faults.services import Coordinator, JournalingCoordinator
from faults.store import Store
from faults.storms import Fault, StormyMesh, abreast, journaling_mesh, let_loose, schedule
from faults.subjects import Family, Subject
from faults.wires import wired
from faults.workflows import Workflow, drawn

pytestmark = pytest.mark.process

SEEDS, LONG_SEEDS = 10, 500
RUN_SECONDS = 90


async def run_through(stormy: StormyMesh, workflows: Sequence[Workflow], faults: Sequence[Fault]) -> None:
    """Carry workflows out while faults happen, and see that all went as promised and that nothing is left of it."""
    runs = [asyncio.ensure_future(workflow.carry_out(stormy.client)) for workflow in workflows]
    try:
        async with (
            asyncio.timeout(RUN_SECONDS),
            background(*(workflow.watch_records(stormy.client) for workflow in workflows)),
        ):
            await let_loose(faults, stormy.subjects, lambda: all(run.done() for run in runs))
            await asyncio.gather(*runs)
    except TimeoutError:
        raise AssertionError(f"not over in time: {await stormy.client.runs(states=['pending', 'running'])}") from None
    finally:
        for run in runs:
            run.cancel()
    found = []
    for workflow in workflows:
        complaints = [*journal_complaints(await workflow.history(stormy)), *await workflow.resume(stormy.client)]
        found += [f"{workflow.workflow_id}: {complaint}" for complaint in complaints]
    assert not found, "\n".join(found)
    for workflow in workflows:
        await until_calm(stormy, workflow.load)


async def live_through(seeds: Sequence[int], folder: Path, *, proxies: bool) -> None:
    """Have a mesh live through storms, one after another, and take no more of the machine after any of them."""
    folder.mkdir()
    loads = []
    async with journaling_mesh(folder, proxies=proxies) as stormy:
        quiet = drawn(random.Random(0), "before", folder)
        await run_through(stormy, quiet, [])
        assert all(workflow.saw_records() for workflow in quiet)
        before = stormy.footprint()
        for seed in seeds:
            draw = random.Random(seed)
            workflows = drawn(draw, f"{seed}", folder)
            loads += [workflow.load for workflow in workflows]
            with noting(stormy, f"seed {seed}; on the same mesh before: {[*seeds[: seeds.index(seed)]]}"):
                await run_through(stormy, workflows, schedule(draw, *befallen(stormy)))
                await until_as_before(stormy, before)
                assert surprises(stormy) == []
    for load in loads:
        await until_nothing_survives(load)


def befallen(stormy: StormyMesh) -> tuple[Sequence[Subject], Sequence[Subject]]:
    """What a storm befalls in any case, coordinators with their wires and their store, and the others."""
    names = {one.name for one in stormy.coordinators}
    first = [each for each in stormy.subjects if each.name.removeprefix("wire of ") in names or each is stormy.store]
    return first, [each for each in stormy.subjects if each not in first]


@pytest.mark.timeout(600)
@pytest.mark.contract("C13", "C14", "C16", "C17", "C18", "C19", "C43", "F2", "F5", "F6", "F7", "F17", "F19")
async def test_whatever_befalls_coordinators_and_their_store_no_run_is_lost_and_no_success_repeated(
    seeds: range, tmp_path: Path, *, proxies: bool
) -> None:
    async with leaving_nothing():
        await abreast(seeds, lambda share: live_through(share, tmp_path / f"mesh-{share[0]}", proxies=proxies))


async def test_every_storm_befalls_coordinators_in_every_way_and_repeats_itself(
    tmp_path: Path, *, proxies: bool
) -> None:
    async with wired(["left"], proxies=proxies) as wires:
        first: list[Subject] = [
            JournalingCoordinator("left", tmp_path, [], wires[0], tmp_path / "journal.db"),
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
