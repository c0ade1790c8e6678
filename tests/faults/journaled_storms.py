"""Journaled runs on meshes to which faults happen, one storm after another."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from fanfold.background import background
from faults.aftermath import noting, surprises, until_as_before, until_calm, until_nothing_survives
from faults.journal_checker import journal_complaints
from faults.storms import Fault, StormyMesh, let_loose, schedule
from faults.subjects import Subject
from faults.workflows import Workflow, drawn

RUN_SECONDS = 90

Makes = Callable[[Path], AbstractAsyncContextManager[StormyMesh]]
"""Has a mesh be up that keeps its files in a folder."""


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


async def live_through(seeds: Sequence[int], folder: Path, mesh: Makes) -> None:
    """Have a mesh live through storms, one after another, and take no more of the machine after any of them."""
    folder.mkdir()
    loads = []
    async with mesh(folder) as stormy:
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
    """What a storm befalls in any case, coordinators with their wires and where their runs are kept, and the others."""
    names = {one.name for one in stormy.coordinators}
    first = [each for each in stormy.subjects if each.name.removeprefix("wire of ") in names or each in stormy.stores]
    return first, [each for each in stormy.subjects if each not in first]
